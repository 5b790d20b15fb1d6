"""The gap report: how much of all prompts was found cached, how much could have been, and where the rest was lost."""

from __future__ import annotations

import msgspec
from aiohttp import web

from wire.errors import Refused

from .errors import json_response
from .front import FRONT
from .route import Route


async def report(request: web.Request) -> web.Response:
    """Hit rate beside what ideal caches would have found, and lost shares by owner: per window and namespace."""
    reply = await request.app[FRONT].generator.client.control("gap")
    if reply.gap is None:
        raise Refused("this server keeps no gap report. Start it without --no-gap-report.")
    return json_response(msgspec.to_builtins(reply.gap))


ROUTES = (Route(method="GET", path="/report", handler=report),)
