"""`/open_session` and `/close_session`: names by which a client tells its requests apart.

A session holds no text and no pages: requests find what they share by their tokens. Each tokenizer knows those that it
has opened itself.
"""

from __future__ import annotations

import uuid

from aiohttp import web

from wire.errors import Refused

from .errors import json_response
from .fields import read_fields
from .front import FRONT
from .route import Route
from .schema import boolean, integer, number, record, shown, string

MAX_SESSIONS = 10_000
_LONGEST_ID = 256

SESSIONS = web.AppKey("sessions", dict[str, None])
"""The ids of the open sessions, the oldest first. It gives way to a new one, since clients may never close theirs."""

_OPEN_BODY = record(
    {
        "session_id": string(longest=_LONGEST_ID, text="Default: a new one."),
        "capacity_of_str_len": integer(0, text="Taken and not needed: a session holds no text."),
        "streaming": boolean(text="Taken and not needed."),
        "timeout": number(0, text="Taken and not needed: a session costs nothing."),
    }
)
_CLOSE_BODY = record({"session_id": string(longest=_LONGEST_ID)}, required=("session_id",))


async def open_session(request: web.Request) -> web.Response:
    """Give a session's id."""
    sessions = request.app[SESSIONS]
    fields = await read_fields(request)
    session_id = fields.string("session_id") or uuid.uuid4().hex
    for name in ("capacity_of_str_len", "streaming", "timeout"):
        fields.raw(name)
    request.app[FRONT].warn_unknown(fields)
    if session_id in sessions:
        raise Refused(f"session_id {shown(session_id)} is open already. Close it, or send another.", field="session_id")
    if len(sessions) >= MAX_SESSIONS:
        del sessions[next(iter(sessions))]
    sessions[session_id] = None
    return json_response(session_id)


async def close_session(request: web.Request) -> web.Response:
    """Forget a session; one that is not open is as good as closed."""
    fields = await read_fields(request)
    request.app[SESSIONS].pop(fields.string("session_id") or "", None)
    request.app[FRONT].warn_unknown(fields)
    return json_response({"status": "closed"})


ROUTES = (
    Route(method="POST", path="/open_session", handler=open_session, body=_OPEN_BODY, examples=({"session_id": "s1"},)),
    Route(
        method="POST", path="/close_session", handler=close_session, body=_CLOSE_BODY, examples=({"session_id": "s1"},)
    ),
)
