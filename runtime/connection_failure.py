"""What went wrong with a connection, in a few words for people: aiohttp's own name its parts and Python's objects."""

from __future__ import annotations

import os

import aiohttp


def connection_failure(error: Exception) -> str:
    """Why `error`, of aiohttp or of a socket, came; without the address, which whoever asked knows.

    >>> connection_failure(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)"))
    'connection refused'
    >>> connection_failure(aiohttp.ServerDisconnectedError())
    'the server closed the connection'
    """
    match error:
        case aiohttp.ClientConnectorDNSError():
            return f"the name {error.host} is not known"
        case aiohttp.ClientConnectorCertificateError():
            return f"its certificate is not trusted ({error.certificate_error})"
        case aiohttp.ClientConnectorError():
            return _reason(error.os_error)
        case TimeoutError():  # aiohttp's are of it too
            return "it did not answer in time"
        case aiohttp.InvalidURL():
            return f"{error.url} is no address"
        case aiohttp.ServerDisconnectedError():
            return "the server closed the connection"
        case aiohttp.ClientPayloadError():
            return "the answer broke off"
        case OSError():
            return _reason(error)
        case _:
            return str(error) or type(error).__name__


def _reason(error: OSError) -> str:
    """The system's words for it; the error's own may be asyncio's, with addresses as tuples."""
    if error.errno is None or error.errno < 0:
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno).lower()
