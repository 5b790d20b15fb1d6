"""Errors in the one envelope that SGLang's and OpenAI's clients both read.

It is `{"error": {"message", "type", "param", "code"}}`. Knows no route.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Protocol

import orjson
from aiohttp import web

from wire.errors import AxilError, DeadlineExceeded, DuplicateId, Overloaded, Unavailable, UnknownKey

_RETRY_WHEN_UNAVAILABLE_S = 5
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class Shape(Protocol):
    """How an API writes an error."""

    def __call__(self, status: int, message: str, *, code: str | None, param: str | None = None) -> dict[str, object]:
        """The body of an error."""


def status_of(error: AxilError) -> int:
    """The HTTP status; a duplicate id is a 400, because clients repeat a 409 by themselves."""
    return 400 if isinstance(error, DuplicateId) else error.status


@contextlib.contextmanager
def spelled(names: Mapping[str, str]) -> Iterator[None]:
    """Have the errors inside name a sampling parameter as the client does: by `names`, from our name to theirs."""
    try:
        yield
    except AxilError as error:
        name = names.get(error.field or "")
        if name is not None:
            error.message = re.sub(rf"\b{error.field}\b", name, error.message)
            error.field = name
        raise


def envelope(status: int, message: str, *, code: str | None, param: str | None = None) -> dict[str, object]:
    """The body of an error."""
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def in_stream(error: AxilError) -> dict[str, object]:
    """The frame that ends a stream whose status has been sent already."""
    body = envelope(status_of(error), error.message, code=error.code, param=error.field)
    return {"error": {**body["error"], "retryable": status_of(error) in (429, 503)}}  # type: ignore[dict-item]  # a dict


def error_response(error: AxilError, shape: Shape = envelope) -> web.Response:
    """The whole answer to a request that failed before its first byte, its body in `shape`."""
    status = status_of(error)
    headers = {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(_RETRY_WHEN_UNAVAILABLE_S)
    if isinstance(error, UnknownKey):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, DeadlineExceeded):
        headers["X-Should-Retry"] = "false"  # the official clients heed it; a retry would take as long again
    body = shape(status, error.message, code=error.code, param=error.field)
    return json_response(body, status=status, headers=headers)


def json_response(body: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """`body` as JSON."""
    return web.Response(body=orjson.dumps(body), status=status, headers=headers, content_type="application/json")
