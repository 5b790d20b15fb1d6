"""What is cached, for the live view: `GET /tree` gives the tree's largest parts, `GET /tree/text` the text of one.

Text is for the admin key; without it there are lengths and digests. However many pages ask one tokenizer, it asks the
scheduler once a second. Knows no page of HTML.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import msgspec
import numpy as np
import orjson
from aiohttp import web

from runtime.client import SchedulerClient
from wire.errors import Refused
from wire.messages.encoding import bytes_to_ids
from wire.messages.to_tokenizer import Outline, Stats

from .access import is_operator
from .errors import envelope, json_response
from .fields import read_query
from .front import FRONT
from .route import Route
from .schema import integer, record, string

_FRESH_S = 1.0
_MOST_KEPT = 8
_NEVER_STORED = {"Cache-Control": "no-store"}
_LARGEST_PAGE = 2**31 - 1

_TREE_QUERY = record({"under": integer(0, _LARGEST_PAGE, text="A page of the node to begin at. Default: the roots.")})
_TEXT_QUERY = record(
    {
        "page": integer(0, _LARGEST_PAGE, text="A page of the node, as /tree gives it."),
        "digest": string(text="The node's digest, as /tree gives it."),
    },
    required=("page", "digest"),
)


@dataclass(slots=True)
class Outlines:
    """The answers to `/tree` of the last second, by the page that they begin at."""

    answers: dict[int | None, tuple[float, asyncio.Future[bytes]]] = field(default_factory=dict)

    async def answer(self, client: SchedulerClient, under: int | None) -> bytes:
        """The JSON of the tree under a page; those who ask at the same time share one answer."""
        now_s = time.monotonic()
        self.answers = {
            page: each for page, each in self.answers.items() if now_s - each[0] < _FRESH_S or not each[1].done()
        }
        if under not in self.answers:
            if len(self.answers) >= _MOST_KEPT:
                raise Refused("too many places of the tree are looked at in this second. Ask again.", field="under")
            self.answers[under] = now_s, asyncio.ensure_future(_asked(client, under))
        return await asyncio.shield(self.answers[under][1])


OUTLINES = web.AppKey("outlines", Outlines)


async def show_tree(request: web.Request) -> web.Response:
    """The tree of cached prefixes: its largest parts as columns, and the scheduler's figures.

    Of what is too small to be shown, each node has one entry with `page` -1 and the number of `nodes` in it. Ask for
    what is `under` a node's page to see more. `may_read_text` says whether /tree/text answers whoever asks so.
    """
    asked = read_query(request, _TREE_QUERY)
    under = asked.get("under")
    assert under is None or isinstance(under, int)
    body = await request.app[OUTLINES].answer(request.app[FRONT].generator.client, under)
    may_read = b"true" if is_operator(request) else b"false"
    body = b'{"may_read_text":' + may_read + b"," + body[1:]
    return web.Response(body=body, content_type="application/json", headers=_NEVER_STORED)


async def show_text(request: web.Request) -> web.Response:
    """The first tokens of one node of the tree, their text, and the request that computed them.

    A node that is not cached any more, or not the one of that digest, is a 404.
    """
    front = request.app[FRONT]
    asked = read_query(request, _TEXT_QUERY)
    page = asked["page"]
    assert isinstance(page, int)
    reply = await front.generator.client.control("run", page=page)
    run = reply.run
    if run is None or _hex(run.digest) != asked["digest"]:
        message = "this part of the tree is not cached any more. Ask /tree for what is."
        return json_response(envelope(404, message, code="not_cached"), status=404, headers=_NEVER_STORED)
    token_ids = bytes_to_ids(run.token_ids)
    text = front.generator.tokenizer.decode(token_ids, skip_special_tokens=False)
    shown = {"start": run.start, "tokens": run.num_tokens, "shown_tokens": len(token_ids), "text": text}
    return json_response({**shown, "request": run.request_id, "token_ids": token_ids}, headers=_NEVER_STORED)


async def _asked(client: SchedulerClient, under: int | None) -> bytes:
    reply = await client.control("outline", page=under)
    assert reply.outline is not None
    return _json(reply.outline, client.stats)


def _json(outline: Outline, stats: Stats) -> bytes:
    entries = np.frombuffer(outline.entries, np.int64).reshape(-1, len(outline.columns))
    nodes: dict[str, object] = {name: entries[:, i].tolist() for i, name in enumerate(outline.columns)}
    digests = entries[:, outline.columns.index("digest")].tolist()
    nodes["digest"] = list(map(_hex, digests))
    return orjson.dumps(
        {
            "at": time.time(),
            "num_nodes": outline.num_nodes,
            "took_ms": round(outline.took_s * 1000, 3),
            "namespaces": list(map(msgspec.structs.asdict, outline.roots)),
            "nodes": nodes,
            "stats": msgspec.to_builtins(stats),
        }
    )


def _hex(digest: int) -> str:
    return f"{digest & (1 << 64) - 1:016x}"


ROUTES = (
    Route(method="GET", path="/tree", handler=show_tree, query=_TREE_QUERY),
    Route(method="GET", path="/tree/text", handler=show_text, access="admin", query=_TEXT_QUERY),
)
