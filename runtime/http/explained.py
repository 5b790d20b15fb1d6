"""Explanations in replies, for those who ask: the header `X-Axil-Explain: 1`, or the field `explain_cache`.

A reply then has the header `X-Axil-Cache`. A stream's head is sent with its first event, when it's known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from runtime.explanation import Place, cause_shown, diagnosis, located, told
from runtime.generation import Generation
from runtime.judging import judge_together
from runtime.records import Record

from .access import is_operator
from .front import FRONT, Front
from .schema import Schema, boolean

EXPLAIN_HEADER = "X-Axil-Explain"
CACHE_HEADER = "X-Axil-Cache"

EXPLAIN_FIELD: dict[str, Schema] = {
    "explain_cache": boolean(text="Say what was reused of the prompt, and why no more; docs/explain.md.")
}


@dataclass(slots=True)
class Explained:
    """What is told of several generations. `complete` finds the parts of the prompts; until then they're guesses.

    `previous_id` is the request that the client wants the first to be compared with.
    """

    front: Front
    generations: Sequence[Generation]
    is_operator: bool
    previous_id: str | None = None
    _is_previous_known: bool | None = None
    _places: dict[str, Place | None] = field(default_factory=dict)

    async def complete(self) -> None:
        """Find out in which parts the misses lie, off the loop where that takes long."""
        if self.previous_id is not None and self._is_previous_known is None:
            self._is_previous_known = await _is_remembered(self.front, self.previous_id)
        for generation in self.generations:
            record = generation.record
            if record.miss is not None and record.request_id not in self._places:
                self._places[record.request_id] = await place_of(self.front, record)

    def body(self, generation: Generation) -> dict[str, object]:
        """What is known of one of them."""
        record = generation.record
        front = self.front
        return told(
            record,
            self._places.get(record.request_id),
            front.generator.client.stats,
            front.generator.tokenizer,
            is_operator=self.is_operator,
        )

    async def bodies(self) -> list[dict[str, object]]:
        """What is known of each of them."""
        await self.complete()
        return [self.body(generation) for generation in self.generations]

    def diagnosis(self) -> dict[str, object] | None:
        """What is known of the first, as Anthropic's `cache_miss_reason`.

        The cause is the cache's own: the previous request only has to be known.
        """
        if self._is_previous_known is False:
            return {"type": "previous_message_not_found"}
        return diagnosis(self.body(self.generations[0]))

    def header(self) -> str:
        """What is known of the first, as a structured header: a dictionary of RFC 8941."""
        record, stats = self.generations[0].record, self.front.generator.client.stats
        items = {"prompt": str(record.num_tokens)}
        if record.reuse is not None:
            items["cached"] = str(record.reuse.cached_tokens)
        if record.miss is not None:
            items["cause"] = str(cause_shown(record, is_operator=self.is_operator))
            items["position"] = str(record.miss.position)
            if (place := self._places.get(record.request_id)) is not None:
                items["part"] = f'"{place.part}"'
        session = None if record.reuse is None else record.reuse.session
        survival = stats.survival if session is None else session.survival
        for name, value in (("belt", stats.belt_s), ("survival", survival)):
            if value is not None:
                items[name] = f"{value:.3f}"
        return ", ".join(f"{name}={value}" for name, value in items.items())


_EXPLAINED = web.RequestKey("explained", Explained)


async def _is_remembered(front: Front, request_id: str) -> bool:
    """Whether any tokenizer has the record of a request."""
    if front.records.find(request_id) is not None:
        return True
    answers = await front.generator.client.peers.ask("requests", request_id)
    return any(msgspec.msgpack.decode(answer) is not None for answer in answers)


async def place_of(front: Front, record: Record) -> Place | None:
    """Find the part of a record's prompt in which its miss lies, and have all tokenizers judge it."""
    await judge_together(front.records, front.generator.client.peers, record)
    tokenizer = front.generator.tokenizer
    return await front.generator.off_loop(record.num_tokens, lambda: located(record, tokenizer))


def is_asked(request: web.Request, *, by_field: bool = False) -> bool:
    """Whether the reply is to explain itself."""
    return by_field or request.headers.get(EXPLAIN_HEADER, "").strip().lower() in ("1", "true")


def explain(request: web.Request, generations: Sequence[Generation]) -> Explained:
    """Have the reply to `request` explain what was reused by `generations`."""
    explained = Explained(request.app[FRONT], generations, is_operator(request))
    request[_EXPLAINED] = explained
    return explained


async def add_cache_header(request: web.Request, response: web.StreamResponse) -> None:
    """Called for each answer before its head is sent."""
    explained = request.get(_EXPLAINED)
    if explained is not None and response.status == 200:
        await explained.complete()
        response.headers[CACHE_HEADER] = explained.header()
