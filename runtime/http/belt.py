"""`GET /belt`: how long unused pages stay cached, and each session's chance to find its own when it comes back."""

from __future__ import annotations

import msgspec
from aiohttp import web

from runtime.explanation import belt

from .errors import json_response
from .fields import read_query
from .front import FRONT
from .route import Route
from .schema import integer, record

_LARGEST_PAGE = 2**31 - 1
_QUERY = record(
    {"page": integer(0, _LARGEST_PAGE, text="First page of a node of /tree: the sessions through it. Default: all.")}
)


async def show_belt(request: web.Request) -> web.Response:
    """How long unused pages stay, and the last sessions with each one's chance to find its pages again.

    A session is requests that go on one from the other; it has the id of its last one, and the one used last comes
    first.
    """
    page = read_query(request, _QUERY).get("page")
    assert page is None or isinstance(page, int)
    client = request.app[FRONT].generator.client
    reply = await client.control("sessions", page=page)
    sessions = [msgspec.structs.asdict(each) for each in reply.sessions or ()]
    return json_response({"belt": belt(client.stats), "sessions": sessions})


ROUTES = (Route(method="GET", path="/belt", handler=show_belt, query=_QUERY),)
