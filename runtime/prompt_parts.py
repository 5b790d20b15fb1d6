"""In which part of a chat's prompt a character lies: tools, system prompt, a message, or what begins the answer.

A template writes what it likes where it likes, so borders are found by rendering once more: with fewer or other
messages, and without the tools. Seldom done, and only when somebody asks. Knows no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wire.errors import Refused

from .chat_source import ChatSource
from .text.shared import num_shared
from .text.template import Message

SYSTEM_ROLES = ("system", "developer")

_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Part:
    """The characters [start, end) of a prompt; `name` is tools, system, message N (from 0) or generation_prompt."""

    name: str
    start: int
    end: int


def part_name(source: ChatSource, index: int) -> str:
    """What the message at `index` is called."""
    is_system = index == 0 and source.messages[0].get("role") in SYSTEM_ROLES
    return "system" if is_system else f"message {index}"


def part_at(source: ChatSource, character: int) -> Part:
    """Find the part in which `character` lies. Renders the chat about 3 log2(messages) times."""
    tools = _tools(source)
    if tools is not None and tools.start <= character < tools.end:
        return tools
    num_messages = len(source.messages)
    end = _shared(source, source.messages)
    if character >= end:
        return Part("generation_prompt", end, len(source.text))
    low, high = 0, num_messages - 1
    while low < high:
        middle = (low + high + 1) // 2
        if _begin(source, middle) <= character:
            low = middle
        else:
            high = middle - 1
    stop = _begin(source, low + 1) if low + 1 < num_messages else end
    return Part(part_name(source, low), _begin(source, low), stop)


def _begin(source: ChatSource, index: int) -> int:
    """Where a message begins: where those before it end, unless the template writes them differently when alone."""
    if index == 0:
        return 0
    before, own = _content(source, index - 1), _content(source, index)
    alone = _shared(source, source.messages[:index])
    return alone if before < alone <= own else own


def _content(source: ChatSource, index: int) -> int:
    """Where the first words of a message stand: the text is the same up to there when they are others."""
    messages = list(source.messages)
    messages[index] = _marked(messages[index])
    return _shared(source, messages)


def _marked(message: Message) -> Message:
    marked = dict(message)
    for name in ("content", "reasoning_content"):
        if isinstance(value := marked.get(name), str) and value:
            marked[name] = _MARK + value
    calls = marked.get("tool_calls")
    if isinstance(calls, list):
        marked["tool_calls"] = [_marked_call(call) for call in calls]
    return marked


def _marked_call(call: object) -> object:
    if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
        return {**call, "function": {**function, "name": f"{_MARK}{function.get('name')}"}}
    return call


def _shared(source: ChatSource, messages: Sequence[Message]) -> int:
    try:
        return num_shared(source.render(messages, with_tools=True), source.text)
    except Refused:
        return 0


def _tools(source: ChatSource) -> Part | None:
    """What stands in the text because of the tools; None without any."""
    if not source.tools:
        return None
    try:
        bare = source.render(source.messages, with_tools=False)
        whole = source.render(source.messages, with_tools=True)
    except Refused:
        return None
    start = num_shared(bare, whole)
    room = min(len(bare), len(whole)) - start
    end = len(whole) - num_shared(bare[::-1][:room], whole[::-1][:room])
    while start and end > start and whole[start - 1] == whole[end - 1]:
        start, end = start - 1, end - 1  # what stands before and within may begin alike: the block begins there
    return Part("tools", start, end) if end > start else None
