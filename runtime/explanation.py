"""What is told of a request's reuse: how much, why no more, where, and how long unused pages stay. Values for JSON.

Texts, other requests' ids and whether another salt has the prefix are for operators only: they tell of other clients.
Knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import asdict

from wire.messages.encoding import bytes_to_ids
from wire.messages.to_tokenizer import Miss, Stats

from .prompt_parts import Part, part_at
from .records import Record
from .text.tokenizer import Tokenizer

ADVICE: Mapping[str, str] = {
    "never_seen": "Nothing like this was computed before, as far as is remembered.",
    "client_changed": "The client has sent this part differently; what follows it has to be computed again. Keep what "
    "comes first the same, and put what changes last.",
    "template_changed": "The client has sent the same, but the chat template writes it differently now. See "
    "axil lint-template.",
    "evicted": "It was cached and had to make room. A larger pool (--max-total-tokens) or cache_priority keeps it.",
    "namespace": "It is cached for another salt, adapter or model, and is not shared across these.",
    "too_short": "What is shared ends within a page, and no page was free to copy it to.",
    "in_flight": "Another request was computing it at that moment.",
    "bypassed": "It is cached, but the logprobs that were asked for have to be computed.",
}
"""What each cause means, and what to do."""

_DIAGNOSES = {"tools": "tools_changed", "system": "system_changed"}


@dataclass(frozen=True, slots=True)
class Place:
    """The part of the prompt in which the first missing token lies, and that part's tokens [start, end)."""

    part: str
    start: int
    end: int


def located(record: Record, tokenizer: Tokenizer) -> Place | None:
    """Find the part; None for what is no chat. Renders the chat several times, so it may take milliseconds."""
    if record.source is None or record.miss is None:
        return None
    token_ids = bytes_to_ids(record.token_ids)

    def characters(num_tokens: int) -> int:
        return len(tokenizer.decode(token_ids[:num_tokens], skip_special_tokens=False))

    def token_at(character: int) -> int:
        low, high = 0, len(token_ids)
        while low < high:
            middle = (low + high) // 2
            if characters(middle) < character:
                low = middle + 1
            else:
                high = middle
        return low

    part: Part = part_at(record.source, characters(record.miss.position))
    return Place(part.name, token_at(part.start), token_at(part.end))


def cause_shown(record: Record, *, is_operator: bool) -> str | None:
    """The cause, for whom it may be told: to users, what only another salt has was never seen."""
    cause = record.cause
    return "never_seen" if cause == "namespace" and not is_operator else cause


def told(
    record: Record, place: Place | None, stats: Stats, tokenizer: Tokenizer, *, is_operator: bool
) -> dict[str, object]:
    """All of it. Before the request's first scheduling only the belt is known."""
    reuse = record.reuse
    body: dict[str, object] = {"prompt_tokens": record.num_tokens}
    if reuse is not None:
        body |= {"cached_tokens": reuse.cached_tokens, "copied_tokens": reuse.copied_tokens, "idle_s": reuse.idle_s}
        body["session"] = None if reuse.session is None else asdict(reuse.session)
        body["miss"] = _miss(record, reuse.miss, place, tokenizer, is_operator=is_operator) if reuse.miss else None
    return body | {"belt": belt(stats)}


def belt(stats: Stats) -> dict[str, object]:
    """How long unused pages stay, and how likely a session returns by then."""
    return {
        "belt_s": stats.belt_s,
        "next_victim_s": stats.next_victim_s,
        "expected_return_s": stats.expected_return_s,
        "survival": stats.survival,
    }


def diagnosis(told: Mapping[str, object]) -> dict[str, object] | None:
    """The miss in the shape of Anthropic's `cache_miss_reason`; None without one.

    Causes that are no change of the request are `unavailable` there; what they are stands in `axil`.
    """
    miss = told.get("miss")
    if not isinstance(miss, dict):
        return None
    kind = "unavailable"
    if miss["cause"] in ("client_changed", "template_changed"):
        kind = _DIAGNOSES.get(str(miss["part"]), "messages_changed")
    elif miss.get("namespace") == "weights":
        kind = "model_changed"
    missed = {} if kind == "unavailable" else {"cache_missed_input_tokens": miss["missed_tokens"]}
    return {"type": kind, **missed, "axil": miss}


def _miss(
    record: Record, miss: Miss, place: Place | None, tokenizer: Tokenizer, *, is_operator: bool
) -> dict[str, object]:
    cause, verdict = cause_shown(record, is_operator=is_operator), record.verdict
    body: dict[str, object] = {
        "cause": cause,
        "advice": ADVICE[str(cause)],
        "position": miss.position,
        "missed_tokens": record.missed_tokens,
        "part": place.part if place is not None else None if verdict is None else verdict.part,
        "part_tokens": None if place is None else [place.start, place.end],
        "change": None if verdict is None else verdict.change,
    }
    if miss.evicted is not None:
        body["evicted"] = {"ago_s": miss.evicted.ago_s, "idle_s": miss.evicted.idle_s}
    if not is_operator:
        return body
    if miss.evicted is not None:
        body["evicted"] = {
            "ago_s": miss.evicted.ago_s,
            "idle_s": miss.evicted.idle_s,
            "made_room_for": miss.evicted.made_room_for,
        }
    if miss.namespace is not None:
        body["namespace"] = miss.namespace
    given, expected = bytes_to_ids(miss.given_ids), bytes_to_ids(miss.expected_ids)
    return body | {
        "relative": miss.relative,
        "given_ids": given,
        "expected_ids": expected,
        "given": tokenizer.decode(given, skip_special_tokens=False),
        "expected": tokenizer.decode(expected, skip_special_tokens=False),
    }
