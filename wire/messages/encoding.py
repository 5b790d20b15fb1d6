"""How a message becomes a frame, and how long lists of integers and logprobs are packed inside. Knows no message.

Long integer lists are `bytes` of little-endian int32.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec

encode = msgspec.msgpack.Encoder().encode

TOKEN_BYTES = 4
"""Bytes of one integer in a long list."""


def ids_to_bytes(ids: Iterable[int]) -> bytes:
    """Pack integers as little-endian int32; an array of them is copied as it is."""
    if isinstance(ids, array) and ids.typecode == "i":
        return ids.tobytes()
    return array("i", ids).tobytes()


def bytes_to_ids(data: bytes) -> list[int]:
    """Unpack little-endian int32 integers."""
    ids = array("i")
    ids.frombytes(data)
    return ids.tolist()


def pack_logprobs(logprob: float, top: Iterable[tuple[int, float]] = ()) -> bytes:
    """Pack a token's logprob and (token id, logprob) pairs: the most likely first, then chosen ids."""
    pairs = list(top)
    ids = array("i", [token_id for token_id, _ in pairs])
    logprobs = array("f", [value for _, value in pairs])
    return array("f", [logprob]).tobytes() + ids.tobytes() + logprobs.tobytes()


def split_entries(data: bytes, num_entries: int) -> list[bytes]:
    """Cut entries that are packed one after the other, all of one size, apart.

    >>> split_entries(b"aaaabbbb", 2), split_entries(b"", 0)
    ([b'aaaa', b'bbbb'], [])
    """
    num_bytes = len(data) // max(num_entries, 1)
    return [data[start : start + num_bytes] for start in range(0, len(data), num_bytes)] if num_bytes else []


def unpack_logprobs(data: bytes) -> tuple[float, list[tuple[int, float]]]:
    """Undo `pack_logprobs`."""
    head = array("f")
    head.frombytes(data[:4])
    num_top = (len(data) - 4) // 8
    ids = bytes_to_ids(data[4 : 4 + 4 * num_top])
    logprobs = array("f")
    logprobs.frombytes(data[4 + 4 * num_top :])
    return head[0], list(zip(ids, logprobs.tolist(), strict=True))
