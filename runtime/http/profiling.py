"""`/start_profile` and `/stop_profile`: torch's profiler in the model runner, as SGLang's clients ask for it."""

from __future__ import annotations

from aiohttp import web

from wire.errors import Refused
from wire.messages.to_scheduler import ProfileWish
from wire.messages.to_tokenizer import ControlReply

from .errors import json_response
from .fields import read_fields
from .front import FRONT
from .route import Route
from .schema import boolean, integer, list_of, record, string, unsupported

MAX_STEPS = 1000

_BODY = record(
    {
        "num_steps": integer(1, MAX_STEPS, text="End after so many steps. Default 100."),
        "with_stack": boolean(text="Note Python's call stacks."),
        "record_shapes": boolean(text="Note the tensors' shapes."),
        "activities": list_of(string(choices=("CPU", "GPU")), text="Both are noted, as far as there is a GPU."),
        **unsupported(
            {
                "output_dir": None,  # an operator's flag, --profile-dir: no client may name files of the server
                "start_step": None,
                "profile_by_stage": None,
                "merge_profiles": None,
                "profile_prefix": None,
                "profile_stages": None,
            }
        ),
    }
)


async def start_profile(request: web.Request) -> web.Response:
    """Begin a profile of the coming steps; it ends by /stop_profile or after `num_steps`."""
    wish = ProfileWish()
    if request.can_read_body:
        fields = await read_fields(request)
        wish = ProfileWish(
            num_steps=fields.integer("num_steps") or wish.num_steps,
            with_stack=fields.boolean("with_stack", wish.with_stack),
            record_shapes=fields.boolean("record_shapes", wish.record_shapes),
        )
        fields.raw("activities")
        request.app[FRONT].warn_unknown(fields)
    _done(await request.app[FRONT].generator.client.control("start_profile", profile=wish))
    return json_response({"status": "profiling", "num_steps": wish.num_steps})


async def stop_profile(request: web.Request) -> web.Response:
    """End the profile and say where its Chrome trace stands."""
    reply = _done(await request.app[FRONT].generator.client.control("stop_profile"))
    return json_response({"status": "written", "path": reply.path})


def _done(reply: ControlReply) -> ControlReply:
    if reply.refusal is not None:
        raise Refused(reply.refusal)
    return reply


_EXAMPLES: tuple[dict[str, object], ...] = ({"num_steps": 5, "activities": ["CPU"], "record_shapes": True},)

ROUTES = (
    Route(method="GET", path="/start_profile", handler=start_profile, access="admin", body=_BODY, examples=_EXAMPLES),
    Route(method="POST", path="/start_profile", handler=start_profile, access="admin", body=_BODY, examples=_EXAMPLES),
    Route(method="GET", path="/stop_profile", handler=stop_profile, access="admin"),
    Route(method="POST", path="/stop_profile", handler=stop_profile, access="admin"),
)
