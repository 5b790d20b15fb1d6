"""The doctor's findings in lines for people. Works on JSON, since a server tells no more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .compare import Change
from .kinds import REMEDY, WHAT
from .prompts import SeenPrompt

Told = Mapping[str, Any]
_SHOWN_CHARACTERS = 72
_LEAST_PROMPTS = 3
"""What has changed once may have been meant; `diagnose` wants a second time."""


def lines(told: Told) -> Iterator[str]:
    """A diagnosis, the costliest group first; groups without findings are counted only."""
    ill = [group for group in told["groups"] if group["findings"]]
    num_groups = len(told["groups"])
    kinds = f"{num_groups} kind{'s' * (num_groups != 1)}"
    yield f"{told['requests']:,} prompts in {told['window_s']:,.0f} s; {kinds}, {len(ill)} with findings"
    if all(group["requests"] < _LEAST_PROMPTS for group in told["groups"]):
        yield f"too few to tell: what changes is found in {_LEAST_PROMPTS} prompts of a kind or more"
    for group in ill:
        yield ""
        yield from _group_lines(group)
    if ill and not told.get("with_text", True):
        yield ""
        yield "what stands there is told with the server's admin key: --api-key KEY"


def _group_lines(group: Told) -> Iterator[str]:
    name = _quoted(group["title"]) if group["title"] else group["id"]
    yield f"{name}: {group['requests']:,} prompts of {group['prompt_tokens']:,} tokens"
    yield f"  {_cost(group)} could have been reused but for:"
    for i, finding in enumerate(group["findings"], 1):
        times = f"{finding['changed']} of {finding['of']} {finding['scope']}s"
        where = f"{finding['place']}, from token {finding['tokens_before']:,} on"
        yield f"  {i}. {where}: {finding['what']}, new in {times}"
        if finding["values"]:
            yield f"     {_shown(finding['context'] or '', finding['values'])}"
        yield f"     costs   {_cost(finding)}"
        yield f"     remedy  {finding['remedy']}"


def _cost(told: Told) -> str:
    words = f"{told['lost_tokens']:,} tokens"
    if told["lost_tokens_a_day"] is None:
        return words
    words += f" ({told['lost_tokens_a_day']:,} a day"
    seconds = told["lost_seconds_a_day"]
    return words + (f", {seconds:,.0f} s of computing)" if seconds is not None else ")")


def two_lines(names: Sequence[str], prompts: Sequence[SeenPrompt], changes: Sequence[Change]) -> Iterator[str]:
    """Where two prompts part, and what else differs behind."""
    one, other = prompts
    if not changes:
        yield f"{names[1]} begins as {names[0]} does; nothing was found that changes"
        return
    tokens_each = one.tokens / max(1, one.num_characters)
    fork = round(changes[0].at * tokens_each)
    yield f"{names[0]} and {names[1]} part in {changes[0].place}, at about token {fork:,} of {one.tokens:,}"
    yield f"  what comes behind is computed again: about {max(0, other.tokens - fork):,} tokens of {names[1]}"
    for i, change in enumerate(changes, 1):
        yield f"  {i}. {change.place}, from token {round(change.at * tokens_each):,} on: {WHAT[change.kind]}"
        if change.context:
            yield f"     behind  {_quoted(change.context[-_SHOWN_CHARACTERS:])}"
        yield f"     {names[0]}: {_quoted(change.one)}"
        yield f"     {names[1]}: {_quoted(change.other)}"
        yield f"     remedy  {REMEDY[change.kind]}"


def two_json(prompts: Sequence[SeenPrompt], changes: Sequence[Change]) -> dict[str, object]:
    """The same for programs."""
    one, other = prompts
    tokens_each = one.tokens / max(1, one.num_characters)
    return {
        "tokens": [one.tokens, other.tokens],
        "changes": [
            {
                "place": change.place,
                "kind": change.kind,
                "what": WHAT[change.kind],
                "character": change.at,
                "tokens_before": round(change.at * tokens_each),
                "context": change.context,
                "values": [change.one, change.other],
                "remedy": REMEDY[change.kind],
            }
            for change in changes
        ],
    }


def _shown(context: str, values: Sequence[str]) -> str:
    said = ", ".join(map(_quoted, values))
    return f"behind  {_quoted(context)}: {said}" if context else said


def _quoted(text: str) -> str:
    short = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
    return json.dumps(short, ensure_ascii=False)
