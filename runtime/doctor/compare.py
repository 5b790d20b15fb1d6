"""What has changed between two prompts that should begin alike.

Prompts are taken to be written as most templates do: what the system says, then the tools, then all other messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from runtime.text.shared import num_shared

from .differences import differences
from .kinds import Kind
from .prompts import Part, SeenPrompt

_SHOWN_NAMES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """In `place`, `one` has become `other`, `at` characters into the earlier prompt."""

    place: str
    kind: Kind
    at: int
    context: str
    one: str
    other: str


def front_characters(prompt: SeenPrompt) -> int:
    """What conversations of one client share: what the system says at the start, and the tools."""
    parts = prompt.message_parts[: prompt.num_instructions] + prompt.tool_parts
    return sum(len(part.text) for part in parts)


def shared_front_characters(one: SeenPrompt, other: SeenPrompt) -> int:
    """How many characters two prompts have in common before they part."""
    shared = 0
    for part, same in zip(_in_order(one), _in_order(other), strict=False):
        if part != same:
            return shared + (num_shared(part.text, same.text) if part.name == same.name else 0)
        shared += len(part.text)
    return shared


def _in_order(prompt: SeenPrompt) -> list[Part]:
    parts, first = prompt.message_parts, prompt.num_instructions
    return [*parts[:first], *prompt.tool_parts, *parts[first:]]


def front_changes(earlier: SeenPrompt, later: SeenPrompt) -> Iterator[Change]:
    """The changes in what the system says and in the tools."""
    at = 0
    num_one, num_other = earlier.num_instructions, later.num_instructions
    for i, part in enumerate(earlier.message_parts[:num_one]):
        if i < num_other:
            yield from _in_text(part.name, part.text, later.message_parts[i].text, at)
        at += len(part.text)
    if num_one != num_other:
        yield Change(place="system", kind="text", at=at, context="", one=f"{num_one} texts", other=f"{num_other} texts")
    yield from _in_tools(earlier.tool_parts, later.tool_parts, at)


def is_trimmed(earlier: SeenPrompt, later: SeenPrompt) -> bool:
    """Whether the later prompt goes on with the earlier one's messages, without the first of them."""
    ones, others = earlier.message_parts[earlier.num_instructions :], later.message_parts[later.num_instructions :]
    return _num_left_out(ones, others) > 0


def history_changes(earlier: SeenPrompt, later: SeenPrompt) -> Iterator[Change]:
    """The changes in the messages of an earlier turn, of which a later one of the same chat should have all."""
    at = front_characters(earlier)
    ones = earlier.message_parts[earlier.num_instructions :]
    others = later.message_parts[later.num_instructions :]
    gap = _num_left_out(ones, others)
    if gap:
        place = f"message {earlier.num_instructions}"
        yield Change(place=place, kind="trimmed", at=at, context="", one=f"{gap} messages", other="left out")
        return
    for i, (one, other) in enumerate(zip(ones, others, strict=False)):
        yield from _in_text(f"message {earlier.num_instructions + i} ({one.name})", one.text, other.text, at)
        at += len(one.text)


def _num_left_out(ones: list[Part], others: list[Part]) -> int:
    """How many messages at the start of an earlier turn are missing from a later one."""
    if not ones or not others or ones[0] == others[0]:
        return 0
    for gap in range(1, len(ones) - 1):
        rest = ones[gap:]
        if rest == others[: len(rest)]:
            return gap
    return 0


def _in_text(place: str, one: str, other: str, at: int) -> Iterator[Change]:
    found = differences(one, other)
    if found is None:
        yield Change(place=place, kind="text", at=at, context="", one=one, other=other)
        return
    for each in found:
        yield Change(
            place=place,
            kind=each.kind,
            at=at + each.at,
            context=each.context,
            one=each.one,
            other=each.other,
        )


def _in_tools(ones: list[Part], others: list[Part], at: int) -> Iterator[Change]:
    names, new_names = [part.name for part in ones], [part.name for part in others]
    if names != new_names:
        i = next((i for i, (a, b) in enumerate(zip(names, new_names, strict=False)) if a != b), None)
        first = min(len(names), len(new_names)) if i is None else i
        yield Change(
            place="tools",
            kind="tool_order" if sorted(names) == sorted(new_names) else "tool_set",
            at=at + sum(len(part.text) for part in ones[:first]),
            context="",
            one=_listed(names[first:]),
            other=_listed(new_names[first:]),
        )
    texts = {part.name: part.text for part in others}
    for part in ones:
        new = texts.get(part.name, part.text)
        if new != part.text:
            if _sorted(new) == _sorted(part.text):
                yield Change(place="tools", kind="key_order", at=at, context=part.name, one=part.text, other=new)
            else:
                yield from _in_text(f"tool {part.name}", part.text, new, at)
        at += len(part.text)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")


def _sorted(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)
