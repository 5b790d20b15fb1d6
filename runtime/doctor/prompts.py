"""A prompt as its client sent it: tools and messages. Read from a request body of any API, without judging it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

CHARACTERS_PER_TOKEN = 4
"""Where nobody has counted a prompt's tokens."""

_INSTRUCTIONS = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Part:
    """One tool or message; `name` is the tool's name or the message's role."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class SeenPrompt:
    """One request's prompt. `at_s` is when it came, `num_tokens` None where nobody has counted."""

    tools: Sequence[Mapping[str, object]]
    messages: Sequence[Mapping[str, object]]
    salt: str = ""
    at_s: float = 0.0
    num_tokens: int | None = None

    @cached_property
    def tool_parts(self) -> list[Part]:
        """The tools, in whichever API's shape, as JSON in their order."""
        return [_tool_part(tool) for tool in self.tools]

    @cached_property
    def message_parts(self) -> list[Part]:
        """All messages as text: what was thought, said and called."""
        return [Part(str(message.get("role", "prompt")), message_text(message)) for message in self.messages]

    @property
    def num_instructions(self) -> int:
        """How many messages the system says before anybody else does."""
        roles = [part.name for part in self.message_parts]
        return next((i for i, role in enumerate(roles) if role not in _INSTRUCTIONS), len(roles))

    @property
    def num_characters(self) -> int:
        """Of all parts."""
        return sum(len(part.text) for part in self.tool_parts + self.message_parts)

    @property
    def tokens(self) -> int:
        """Counted, or estimated from the characters."""
        if self.num_tokens is not None:
            return self.num_tokens
        return -(-self.num_characters // CHARACTERS_PER_TOKEN)


def prompt_of_body(body: Mapping[str, object]) -> SeenPrompt:
    """The prompt in a request's body: of chats of OpenAI's and Anthropic's API, responses, completions, `/generate`.

    Raises:
        ValueError: there is none.
    """
    messages = [*_instructions(body), *_said(body)]
    tools = body.get("tools")
    if not messages:
        raise ValueError("it has none of messages, input, prompt and text")
    salt = body.get("cache_salt") or body.get("extra_key")
    return SeenPrompt(
        tools=[tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else [],
        messages=messages,
        salt=salt if isinstance(salt, str) else "",
    )


def _instructions(body: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    for name in ("system", "instructions"):
        if body.get(name):
            yield {"role": "system", "content": body[name]}


def _said(body: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    for name in ("messages", "input", "prompt", "text"):
        match body.get(name):
            case [dict(), *_] as items:
                yield from (item for item in items if isinstance(item, dict))
                return
            case str() as text if text:
                yield {"role": "user" if name == "input" else "prompt", "content": text}
                return
            case [str() as text, *_]:
                yield {"role": "prompt", "content": text}
                return


def message_text(message: Mapping[str, object]) -> str:
    """Everything that a message says, in lines."""
    texts = [content_text(message[name]) for name in ("reasoning_content", "content", "output") if message.get(name)]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        texts.append(_json(function if isinstance(function, dict) else call))
    if "arguments" in message:  # a call of responses
        texts.append(f"{message.get('name')} {message['arguments']}")
    return "\n".join(texts)


def content_text(content: object) -> str:
    """A text, or the texts of all blocks; of a block of another kind, its JSON without an id."""
    match content:
        case str():
            return content
        case list():
            return "\n".join(map(content_text, content))
        case {"text": str() as text}:
            return text
        case {"type": "thinking", "thinking": str() as text}:
            return text
        case {"type": "tool_result", **rest}:
            return content_text(rest.get("content", ""))
        case dict():
            return _json({key: value for key, value in content.items() if key != "id"})
        case _:
            return str(content)


def _tool_part(tool: Mapping[str, object]) -> Part:
    function = tool.get("function")
    shown = function if isinstance(function, dict) else {k: v for k, v in tool.items() if k != "cache_control"}
    return Part(str(shown.get("name", "")), _json(shown))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
