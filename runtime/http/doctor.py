"""`/doctor`: what changes at the front of recent prompts, in all tokenizers; their text for operators only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import msgspec
from aiohttp import web

from runtime.doctor.diagnose import diagnose
from runtime.doctor.diagnosis import Diagnosis, merged, told, without_text
from runtime.peers import WORK_S
from wire.errors import Refused
from wire.messages.to_tokenizer import Stats

from .access import is_operator
from .errors import json_response
from .front import FRONT, Front
from .route import Route

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Diagnosis).decode


async def doctor(request: web.Request) -> web.Response:
    """What changes at the front of recent prompts, what it costs, and what to do; with text for the admin key."""
    front = request.app[FRONT]
    if not front.launch.config.doctor_prompts:
        raise Refused("the doctor sees no prompts here. Start the server with --doctor-prompts above 0.")
    others = front.generator.client.peers.ask("diagnose", within_s=WORK_S)
    own, answers = await asyncio.gather(_own(front), others)
    diagnosis = merged([own, *map(_decode, answers)])
    with_text = is_operator(request)
    shown = told(diagnosis if with_text else without_text(diagnosis))
    return json_response({"with_text": with_text, **shown})


def encoded_diagnosis(front: Front) -> Awaitable[bytes]:
    """This tokenizer's part, for another that is asked."""

    async def encoded() -> bytes:
        return _encode(await _own(front))

    return encoded()


async def _own(front: Front) -> Diagnosis:
    def made() -> Awaitable[Diagnosis]:
        prompts = front.window.prompts()
        token_s = _token_s(front.generator.client.stats)
        return front.generator.in_thread(lambda: diagnose(prompts, token_s=token_s))

    return await front.diagnosis.get(made)


def _token_s(stats: Stats) -> float:
    """What a token has cost the runner so far; decoding counts too, whose tokens cost more."""
    num_tokens = stats.computed_tokens_total + stats.output_tokens_total
    return stats.runner_busy_s_total / num_tokens if num_tokens else 0.0


ROUTES = (Route(method="GET", path="/doctor", handler=doctor),)
