"""What one chat has changed of another that it goes on from, told from what the clients have sent.

Two chats that begin alike and then part may be a chat and its changed history, or two different chats: it's a change
where later parts are the same again. Knows no tokens, no cache and no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from .chat_source import ChatSource
from .prompt_parts import SYSTEM_ROLES, part_name
from .text.shared import num_shared
from .text.template import Message

Change = Literal["edited", "reordered", "added", "removed", "options", "dropped_reasoning", "rerendered"]

_ALIKE = 0.5
"""Two texts are versions of one when at least this part of the shorter one's rest stands in both ends."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether what is missing is new or was changed, by whom, in which part (None: of no chat), and how."""

    cause: Literal["never_seen", "client_changed", "template_changed"]
    part: str | None = None
    change: Change | None = None


NEW = Verdict("never_seen")


def compare(own: ChatSource, other: ChatSource, *, answer: Callable[[], str] | None) -> Verdict:
    """Judge `own`, whose prompt parted from that of `other`; where `answer` is given, from the answer behind it."""
    if (verdict := _compare_tools(own, other)) is not None:
        return verdict
    index = _first_difference(own.messages, other.messages)
    if index < min(len(own.messages), len(other.messages)):
        return _compare_message(own, other, index)
    if own.variables != other.variables:
        return Verdict("client_changed", None, "options")
    if len(own.messages) <= len(other.messages):
        return Verdict("template_changed", "generation_prompt", "rerendered")
    if answer is None:
        return Verdict("template_changed", None, "dropped_reasoning" if _drops_reasoning(own, index) else "rerendered")
    return _compare_answer(own, index, answer())


def is_version(one: str, other: str) -> bool:
    """Whether two texts are alike but for one stretch: a line with the time, say.

    >>> is_version("It is 12:01. Be brief and kind.", "It is 12:02. Be brief and kind.")
    True
    >>> is_version("What is gravity?", "What is light?")
    False
    """
    start = num_shared(one, other)
    rest = min(len(one), len(other)) - start
    end = num_shared(one[::-1][:rest], other[::-1][:rest])
    return end >= _LEAST_CHARACTERS and end >= _ALIKE * rest


_LEAST_CHARACTERS = 12
"""A shorter common end says nothing."""


def _compare_tools(own: ChatSource, other: ChatSource) -> Verdict | None:
    if own.tools == other.tools or not own.tools or not other.tools:
        return None
    ours, theirs = list(own.tools), list(other.tools)
    num_same = sum(tool in theirs for tool in ours)
    names, their_names = [_name(tool) for tool in ours], [_name(tool) for tool in theirs]
    num_named = sum(name in their_names for name in names)
    if 2 * num_named < min(len(ours), len(theirs)):
        return None
    if num_same == len(ours) == len(theirs):
        return Verdict("client_changed", "tools", "reordered")
    if sorted(names) != sorted(their_names):
        change: Change = "removed" if len(ours) < len(theirs) else "added"
        return Verdict("client_changed", "tools", change)
    return Verdict("client_changed", "tools", "edited")


def _compare_message(own: ChatSource, other: ChatSource, index: int) -> Verdict:
    ours, theirs = own.messages[index], other.messages[index]
    part = part_name(own, index)
    if index == 0 and (ours.get("role") in SYSTEM_ROLES) != (theirs.get("role") in SYSTEM_ROLES):
        is_added = ours in own.messages[:1] and theirs in own.messages[1:2]
        return Verdict("client_changed", part, "added") if is_added else NEW
    if ours in other.messages[index + 1 :]:
        return Verdict("client_changed", part, "removed")
    if theirs in own.messages[index + 1 :]:
        return Verdict("client_changed", part, "added")
    if any(message in other.messages[index + 1 :] for message in own.messages[index + 1 : index + 3]):
        return Verdict("client_changed", part, "edited")
    if ours.get("role") == theirs.get("role") and is_version(_text(ours), _text(theirs)):
        return Verdict("client_changed", part, "edited")
    return NEW


def _compare_answer(own: ChatSource, index: int, answer: str) -> Verdict:
    """All that the other chat has sent is here too: what is new begins with its answer."""
    message = own.messages[index]
    if message.get("role") != "assistant":
        return Verdict("client_changed", part_name(own, index), "removed") if answer else NEW
    said = _text(message).strip()
    is_said = said in answer if said else bool(message.get("tool_calls"))
    if not is_said:
        return Verdict("client_changed", part_name(own, index), "edited")
    is_dropped = _drops_reasoning(own, index + 1) or ("</think>" in answer and "</think>" not in own.text)
    return Verdict("template_changed", part_name(own, index), "dropped_reasoning" if is_dropped else "rerendered")


def _drops_reasoning(source: ChatSource, num_messages: int) -> bool:
    """Whether the template has left out what an assistant has thought in one of the first messages."""
    thoughts = (str(message.get("reasoning_content") or "").strip() for message in source.messages[:num_messages])
    return any(thought and thought not in source.text for thought in thoughts)


def _first_difference(ours: Sequence[Message], theirs: Sequence[Message]) -> int:
    shared = 0
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            break
        shared += 1
    return shared


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _name(tool: dict[str, object]) -> str:
    function = tool.get("function")
    return str(function.get("name")) if isinstance(function, dict) else ""
