"""The small routes: health, the model's and the server's description, flush, abort, drain, metrics."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Iterable

import msgspec
from aiohttp import web

from runtime.client import SchedulerClient
from runtime.config import SECRETS
from runtime.generation import Prompt
from runtime.metrics import CONTENT_TYPE, Readings, exposition
from wire.errors import Refused, Unavailable, UnknownModel, counted
from wire.sampling import SamplingParams

from .errors import json_response
from .fields import read_fields, read_query
from .front import FRONT, Front
from .route import Route
from .schema import boolean, number, record, shown, string
from .workers import ask_all, drain_state

_PROBE_S = 20.0
_PROBE_SALT = "axil health probe"
_LONGEST_WAIT_S = 3600
_IDLE_POLL_S = 0.05
_FLUSH_QUERY = record({"timeout": number(0, _LONGEST_WAIT_S, text="Wait so many seconds until no request is open.")})


async def index(request: web.Request) -> web.Response:
    """Say what this is."""
    front = request.app[FRONT]
    text = (
        f"axil serves {front.model_name}.\n"
        "POST /v1/chat/completions, /v1/completions or /generate; GET /v1/models, /health, /metrics.\n"
        "A live view of what is cached is at /ui; all routes, whose bodies /openapi.json describes:\n"
        f"{request.app[ROUTE_LIST]}\n"
    )
    return web.Response(text=text)


ROUTE_LIST = web.AppKey("route_list", str)
"""What the index lists."""


def route_list(routes: Iterable[Route]) -> str:
    """The paths of `routes` with their methods, a line each; those that only say why they are not offered are left out.

    >>> one = Route(method="GET", path="/a/{id:.+}", handler=index)
    >>> route_list([one, Route(method="PUT", path="/a", handler=index)])
    '  PUT    /a\\n  GET    /a/{id}'
    """
    offered = {(re.sub(r":[^}]+", "", each.path), each.method) for each in routes if each.answer is not None}
    return "\n".join(f"  {method:<6} {path}" for path, method in sorted(offered))


async def health(request: web.Request) -> web.Response:
    """Whether the server can and shall serve, from the scheduler's heartbeat; nothing is generated."""
    front = request.app[FRONT]
    why = front.generator.client.why_unhealthy() or front.gate.why_closed
    if why is not None:
        raise Unavailable(why)
    return json_response({"status": "paused" if front.generator.client.stats.is_paused else "ok"})


async def live(request: web.Request) -> web.Response:
    """Whether there is any use in letting the server live: also while it loads, drains or stops."""
    client = request.app[FRONT].generator.client
    why = None if client.is_starting else client.why_unhealthy()
    if why is not None:
        raise Unavailable(why)
    return json_response({"status": "ok"})


async def health_generate(request: web.Request) -> web.Response:
    """Whether one token comes back within 20 s."""
    generator = request.app[FRONT].generator
    if generator.client.stats.is_paused:
        raise Unavailable("generation is paused. POST /continue_generation.")
    prompt = Prompt(
        token_ids=[0],
        sampling=SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True),
        request_id=f"health-{uuid.uuid4().hex}",
        salt=_PROBE_SALT,
    )
    try:
        async with asyncio.timeout(_PROBE_S):
            with await generator.start(prompt, generator.arrival()) as generation:
                async for _ in generation:
                    pass
    except TimeoutError as error:
        raise Unavailable(f"no token came within {_PROBE_S:.0f} s") from error
    return json_response({"status": "ok"})


async def list_models(request: web.Request) -> web.Response:
    """The one model, in OpenAI's list."""
    return json_response({"object": "list", "data": [_model_card(request.app[FRONT])]})


async def show_model(request: web.Request) -> web.Response:
    """The model, when it is this one."""
    front = request.app[FRONT]
    name = request.match_info["name"]
    if name != front.model_name:
        raise UnknownModel(f"model {shown(name)} is not served here; {front.model_name!r} is.", field="model")
    return json_response(_model_card(front))


async def model_info(request: web.Request) -> web.Response:
    """The model, as SGLang's clients ask for it."""
    front = request.app[FRONT]
    return json_response(
        {
            "model_path": front.launch.model_path,
            "tokenizer_path": front.launch.tokenizer_dir,
            "served_model_name": front.model_name,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "load_format": "auto",
            "tool_call_parser": front.answer_form.call_form_name,
            "reasoning_parser": front.answer_form.thought_tags_name,
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": front.files.model_config.get("model_type"),
            "architectures": front.files.model_config.get("architectures"),
        }
    )


async def server_info(request: web.Request) -> web.Response:
    """The whole configuration and the scheduler's latest figures."""
    front = request.app[FRONT]
    workers = await ask_all(front, "figures")
    stats = front.generator.client.stats
    shown_config = {name: value for name, value in front.launch.server_info.items() if name not in SECRETS}
    return json_response(
        {
            **shown_config,
            "model_path": front.launch.model_path,
            "served_model_name": front.model_name,
            "dp_size": 1,
            "max_total_num_tokens": stats.num_pages * stats.page_tokens,
            "max_running_requests": stats.max_running,
            "context_length": stats.context_tokens,
            **drain_state(workers),
            "internal_states": [{**msgspec.to_builtins(stats), **_of_replica(front)}],
        }
    )


def _of_replica(front: Front) -> dict[str, object]:
    """What SGLang's clients read of a replica's state, in its words."""
    client = front.generator.client
    stats = client.stats
    return {
        "memory_usage": {"token_capacity": stats.num_pages * stats.page_tokens},
        "last_gen_throughput": client.output_tokens_per_s,
        "effective_max_running_requests_per_dp": stats.max_running,
        "world_size": front.launch.server_info.get("tensor_parallel", 1),
    }


async def flush_cache(request: web.Request) -> web.Response:
    """Drop every cached page that no request uses; with `timeout`, all of them, once no request is under way."""
    client = request.app[FRONT].generator.client
    timeout_s = read_query(request, _FLUSH_QUERY).get("timeout")
    if isinstance(timeout_s, float):
        await _until_idle(client, within_s=timeout_s)
    reply = await client.control("flush")
    return web.Response(text=f"Cache flushed: {counted(reply.count, 'page')}.\n")


async def _until_idle(client: SchedulerClient, *, within_s: float) -> None:
    ends_s = time.monotonic() + within_s
    while True:
        stats = (await client.control("stats")).stats
        if stats is None or not stats.num_running + stats.num_waiting:
            return
        if time.monotonic() >= ends_s:
            raise Refused(
                f"timeout is {within_s:g} s, and then {stats.num_running} requests still ran and {stats.num_waiting} "
                "waited: nothing was flushed. Send a longer one, or none to drop only what no request uses.",
                field="timeout",
            )
        await asyncio.sleep(_IDLE_POLL_S)


async def abort_request(request: web.Request) -> web.Response:
    """Abort the request with this very `rid`, or all."""
    fields = await read_fields(request)
    rid = fields.string("rid")
    is_all = fields.boolean("abort_all", False)
    if not is_all and not rid:
        raise Refused("rid is missing. Send the id of a request, or abort_all true.", field="rid")
    client = request.app[FRONT].generator.client
    reply = await client.control("abort", request_id=None if is_all else rid)
    return json_response({"aborted": reply.count})


async def drain(request: web.Request) -> web.Response:
    """Take no new requests, let the open ones finish, and stay up until stopped or reopened; says how many are open."""
    return json_response(drain_state(await ask_all(request.app[FRONT], "drain")))


async def end_drain(request: web.Request) -> web.Response:
    """Take new requests again."""
    return json_response(drain_state(await ask_all(request.app[FRONT], "reopen")))


async def show_drain(request: web.Request) -> web.Response:
    """Whether the server drains, and how many requests are open."""
    return json_response(drain_state(await ask_all(request.app[FRONT], "figures")))


async def metrics(request: web.Request) -> web.Response:
    """Everything for Prometheus."""
    front = request.app[FRONT]
    workers = await ask_all(front, "figures")
    client = front.generator.client
    readings = Readings(client.stats, [worker.figures for worker in workers], client.recent_hit_rate)
    body = exposition(readings, model_name=front.model_name)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def _model_card(front: Front) -> dict[str, object]:
    return {
        "id": front.model_name,
        "object": "model",
        "created": front.started_at,
        "owned_by": "axil",
        "root": front.launch.model_path,
        "parent": None,
        "max_model_len": front.generator.client.stats.context_tokens or None,
    }


ROUTES = (
    Route(method="GET", path="/", handler=index, answer="text/plain"),
    Route(method="GET", path="/health", handler=health, access="open"),
    Route(method="GET", path="/ready", handler=health, access="open"),
    Route(method="GET", path="/live", handler=live, access="open"),
    Route(method="GET", path="/health_generate", handler=health_generate, access="open", is_work=True),
    Route(method="GET", path="/metrics", handler=metrics, access="open", answer="text/plain"),
    Route(method="GET", path="/model_info", handler=model_info),
    Route(method="GET", path="/get_model_info", handler=model_info),
    Route(method="GET", path="/server_info", handler=server_info),
    Route(method="GET", path="/get_server_info", handler=server_info),
    Route(method="GET", path="/v1/models", handler=list_models),
    Route(method="GET", path="/v1/models/{name:.+}", handler=show_model),
    Route(
        method="GET", path="/flush_cache", handler=flush_cache, access="admin", query=_FLUSH_QUERY, answer="text/plain"
    ),
    Route(
        method="POST", path="/flush_cache", handler=flush_cache, access="admin", query=_FLUSH_QUERY, answer="text/plain"
    ),
    Route(
        method="POST",
        path="/abort_request",
        handler=abort_request,
        access="admin",
        body=record({"rid": string(text="The request's id."), "abort_all": boolean(text="All requests.")}),
        examples=({"rid": "a1"}, {"abort_all": True}),
    ),
    Route(method="GET", path="/drain", handler=show_drain),
    Route(method="POST", path="/drain", handler=drain, access="admin"),
    Route(method="DELETE", path="/drain", handler=end_drain, access="admin"),
)
