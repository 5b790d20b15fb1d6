"""How busy the server is, as routers ask: `/v1/loads`, and `/get_load` for those of SGLang's older protocol."""

from __future__ import annotations

import time

from aiohttp import web

from runtime.client import SchedulerClient
from runtime.metrics import used_tokens

from .admin import metrics
from .errors import json_response
from .fields import read_query
from .front import FRONT
from .route import Route
from .schema import integer, record, string

_SECTIONS = ("core", "memory", "queues", "all")
_QUERY = record(
    {
        "dp_rank": integer(0, 0, text="There is one replica."),
        "include": string(choices=_SECTIONS, text="core is always told. Default all."),
        "format": string(choices=("json", "prometheus"), text="prometheus gives what /metrics gives."),
    }
)


async def get_load(request: web.Request) -> web.Response:
    """Requests and tokens of each replica, in the list that SGLang's router polls."""
    stats = request.app[FRONT].generator.client.stats
    return json_response(
        [
            {
                "dp_rank": 0,
                "num_reqs": stats.num_running + stats.num_waiting,
                "num_waiting_reqs": stats.num_waiting,
                "num_tokens": used_tokens(stats),
            }
        ]
    )


async def loads(request: web.Request) -> web.Response:
    """Load of each replica."""
    front = request.app[FRONT]
    asked = read_query(request, _QUERY)
    if asked.get("format") == "prometheus":
        return await metrics(request)
    stats = front.generator.client.stats
    return json_response(
        {
            "timestamp": time.time(),
            "version": front.launch.server_info.get("version"),
            "accelerator": stats.device,
            "num_accelerators": front.launch.server_info.get("tensor_parallel", 1),
            "loads": [_load(front.generator.client, str(asked.get("include", "all")))],
        }
    )


def _load(client: SchedulerClient, section: str) -> dict[str, object]:
    stats = client.stats
    total, used = stats.num_pages * stats.page_tokens, used_tokens(stats)
    load: dict[str, object] = {
        "dp_rank": 0,
        "num_running_reqs": stats.num_running,
        "num_waiting_reqs": stats.num_waiting,
        "num_waiting_uncached_tokens": stats.pending_tokens,
        "num_used_tokens": used,
        "num_total_tokens": used,
        "max_total_num_tokens": total,
        "max_running_requests": stats.max_running,
        "token_usage": used / total if total else 0.0,
        "gen_throughput": client.output_tokens_per_s,
        "cache_hit_rate": client.recent_hit_rate or 0.0,
        "utilization": stats.num_running / stats.max_running if stats.max_running else 0.0,
    }
    if section in ("memory", "all"):
        load["memory"] = {
            "token_capacity": total,
            "cached_tokens": stats.cached_pages * stats.page_tokens,
            "evictable_tokens": stats.evictable_pages * stats.page_tokens,
            "free_tokens": stats.free_pages * stats.page_tokens,
        }
    if section in ("queues", "all"):
        load["queues"] = {"waiting": stats.num_waiting, "retracted_total": stats.retractions_total}
    return load


ROUTES = (
    Route(method="GET", path="/get_load", handler=get_load),
    Route(method="GET", path="/v1/loads", handler=loads, query=_QUERY),
)
