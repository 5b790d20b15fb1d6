"""`GET /requests`: the last requests of all tokenizers, what was reused of each and why no more. Bounded, in memory."""

from __future__ import annotations

from typing import cast

import msgspec
from aiohttp import web

from runtime.explanation import Place, told
from runtime.records import MAX_RECORDS, Record
from wire.errors import NotFound

from .access import is_operator
from .errors import json_response
from .explained import place_of
from .fields import read_query
from .front import FRONT, Front
from .route import Route
from .schema import integer, record, shown

DEFAULT_LIMIT = 100

_QUERY = record({"limit": integer(1, text=f"So many at most; default {DEFAULT_LIMIT}.")})


async def list_requests(request: web.Request) -> web.Response:
    """List the last requests, the latest first: lengths, times, reuse and causes of misses.

    Each is explained at /requests/{id}.
    """
    front = request.app[FRONT]
    limit = read_query(request, _QUERY).get("limit", DEFAULT_LIMIT)
    assert isinstance(limit, int)
    rows = rows_of(front)
    for answer in await front.generator.client.peers.ask("requests"):
        rows += cast("list[dict[str, object]]", msgspec.msgpack.decode(answer))
    rows.sort(key=lambda row: float(str(row["arrived_at"])), reverse=True)
    shown_rows = rows[:limit] if is_operator(request) else [_for_users(row) for row in rows[:limit]]
    return json_response({"requests": shown_rows})


async def show_request(request: web.Request) -> web.Response:
    """Explain what was reused of one of the last requests, and why no more.

    Texts, and what tells of other clients, are there for the admin key only, where there is one.
    """
    front = request.app[FRONT]
    request_id = request.match_info["id"]
    kind = "operator" if is_operator(request) else "user"
    if (found := front.records.find(request_id)) is not None:
        return json_response(_views(front, found, await place_of(front, found))[kind])
    for answer in await front.generator.client.peers.ask("requests", request_id):
        if (views := msgspec.msgpack.decode(answer)) is not None:
            return json_response(cast("dict[str, object]", views)[kind])
    raise NotFound(
        f"no request {shown(request_id)} is remembered: each tokenizer keeps its last {MAX_RECORDS} or fewer. "
        "See /requests."
    )


def rows_of(front: Front) -> list[dict[str, object]]:
    """The requests of this tokenizer."""
    return [_row(each) for each in front.records.latest()]


async def views_of(front: Front, request_id: str) -> dict[str, object] | None:
    """One request of this tokenizer, as operators and as users see it; None when it's not known here."""
    found = front.records.find(request_id)
    return None if found is None else _views(front, found, await place_of(front, found))


def _views(front: Front, found: Record, place: Place | None) -> dict[str, object]:
    stats, tokenizer, row = front.generator.client.stats, front.generator.tokenizer, _row(found)
    return {
        "operator": row | {"cache": told(found, place, stats, tokenizer, is_operator=True)},
        "user": _for_users(row) | {"cache": told(found, place, stats, tokenizer, is_operator=False)},
    }


def _for_users(row: dict[str, object]) -> dict[str, object]:
    """That another salt has a prompt is nobody's business but an operator's."""
    return row | {"cause": "never_seen"} if row["cause"] == "namespace" else row


def _row(found: Record) -> dict[str, object]:
    """One request in the list; times are in seconds, None until they are known."""
    reuse, miss = found.reuse, found.miss
    return {
        "id": found.request_id,
        "arrived_at": found.arrived_at,
        "state": found.ended or ("running" if reuse is not None else "waiting"),
        "prompt_tokens": found.num_tokens,
        "cached_tokens": None if reuse is None else reuse.cached_tokens,
        "output_tokens": len(found.output_ids),
        "queue_s": None if reuse is None else reuse.queue_s,
        "first_token_s": found.first_token_s,
        "latency_s": found.latency_s,
        "idle_s": None if reuse is None else reuse.idle_s,
        "cause": found.cause,
        "part": None if found.verdict is None else found.verdict.part,
        "position": None if miss is None else miss.position,
        "missed_tokens": found.missed_tokens,
        "normalized": [] if found.source is None else list(found.source.changes),
    }


ROUTES = (
    Route(
        method="GET",
        path="/requests",
        handler=list_requests,
        query=_QUERY,
    ),
    Route(method="GET", path="/requests/{id}", handler=show_request),
)
