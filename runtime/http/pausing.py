"""`/pause_generation` and `/continue_generation`: the whole server waits, as SGLang's clients ask for it.

The scheduler begins no step between the two; requests are taken and wait, and those under way stop where they are.
"""

from __future__ import annotations

from aiohttp import web

from .errors import json_response
from .fields import read_fields
from .front import FRONT
from .route import Route
from .schema import record, string

_BODY = record(
    {
        "mode": string(
            choices=("abort", "in_place"),
            text="abort (the default) ends the requests that are open; in_place lets them go on afterwards.",
        )
    }
)


async def pause_generation(request: web.Request) -> web.Response:
    """Begin no more steps until /continue_generation; the open requests are aborted, or wait where they are."""
    front = request.app[FRONT]
    mode = "abort"
    if request.can_read_body:
        fields = await read_fields(request)
        mode = fields.string("mode") or mode
        front.warn_unknown(fields)
    client = front.generator.client
    await client.control("pause")
    num_aborted = (await client.control("abort")).count if mode == "abort" else 0
    return json_response({"status": "ok", "message": "Generation is paused.", "mode": mode, "aborted": num_aborted})


async def continue_generation(request: web.Request) -> web.Response:
    """End a pause; without one nothing changes."""
    await request.app[FRONT].generator.client.control("continue")
    return json_response({"status": "ok", "message": "Generation goes on."})


ROUTES = (
    Route(
        method="POST",
        path="/pause_generation",
        handler=pause_generation,
        access="admin",
        body=_BODY,
        examples=({"mode": "in_place"},),
    ),
    Route(method="POST", path="/continue_generation", handler=continue_generation, access="admin"),
)
