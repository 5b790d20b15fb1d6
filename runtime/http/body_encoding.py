"""Bodies that come compressed, unpacked up to a limit and off the event loop. Knows nothing of what they hold.

The HTTP library would unpack them on the loop, and what nobody wants to read too: a megabyte may hold a thousand.
"""

from __future__ import annotations

import asyncio
import zlib

from wire.errors import Refused

from .schema import shown

HEADER = "Content-Encoding"
_PLAIN = ("", "identity")
_GZIP = 16 + zlib.MAX_WBITS
_DEFLATE = 8
"""The low half of a deflated body's first byte by the standard; some clients leave out the frame that it is of."""


class TooLarge(Exception):
    """More than was allowed comes out."""


async def unpacked(body: bytes, encoding: str, *, most_bytes: int) -> bytes:
    """The body itself, that came in an encoding as the header names it.

    Raises:
        TooLarge: it has more than `most_bytes`.
        Refused: the encoding is none that we read, or the body isn't in it.
    """
    match encoding.strip().lower():
        case name if name in _PLAIN or not body:
            return body
        case "gzip" | "x-gzip":
            wbits = _GZIP
        case "deflate":
            wbits = zlib.MAX_WBITS if body[0] & 0xF == _DEFLATE else -zlib.MAX_WBITS
        case _:
            raise Refused(
                f"the body's {HEADER} is {shown(encoding)}; gzip and deflate are read. Send one of these, or plain.",
                field=HEADER,
            )
    try:
        return await asyncio.to_thread(_inflated, body, wbits, most_bytes)
    except zlib.error as error:
        raise Refused(
            f"the body is not in {encoding}, as its {HEADER} says: {error}. Send it whole, or plain.", field=HEADER
        ) from error


def _inflated(body: bytes, wbits: int, most_bytes: int) -> bytes:
    stream = zlib.decompressobj(wbits)
    inflated = stream.decompress(body, most_bytes + 1)
    if len(inflated) > most_bytes:
        raise TooLarge
    if not stream.eof:
        raise zlib.error("it ends too soon")
    if stream.unused_data:
        raise zlib.error("something follows behind its end")
    return inflated
