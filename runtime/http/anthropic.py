"""Anthropic's shapes: a request's messages, system and tools to a chat, and errors. Writes no answers."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from runtime.text.template import Message, template_variables
from wire.errors import AxilError, PromptTooLong, Refused

from .chat_prompt import MESSAGE_CHARACTERS, Chat, normalised_chat
from .errors import status_of
from .fields import Fields
from .front import Front
from .place import seconds
from .schema import Schema, boolean, either, integer, list_of, mapping, record, shown, string
from .tools import MAX_TOOLS, ToolWish, made_wish

MESSAGES_PATH = "/v1/messages"

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}

_DEFAULT_TTL_S = 300.0
"""How long `cache_control` without a time asks for."""

_NO_TEXT = {"image": "images", "document": "documents other than plain text"}
"""Blocks that the API knows and a model of text can't read."""

_CACHE_CONTROL = record({"type": string(), "ttl": string(text="5m or 1h.")})
_BLOCKS = list_of(mapping())

CHAT_FIELDS: dict[str, Schema] = {
    "messages": list_of(
        record({"role": string(), "content": either(string(), _BLOCKS)}, required=("role", "content")),
        least=1,
        text="Turns of user and assistant; content is text or blocks.",
    ),
    "system": either(string(), _BLOCKS, text="What stands before all messages."),
    "tools": list_of(
        record(
            {
                "type": string(),
                "name": string(longest=256),
                "description": string(),
                "input_schema": mapping(text="A JSON schema."),
                "cache_control": _CACHE_CONTROL,
            }
        ),
        most=MAX_TOOLS,
    ),
    "tool_choice": record(
        {
            "type": string(choices=("auto", "any", "tool", "none")),
            "name": string(),
            "disable_parallel_tool_use": boolean(),
        }
    ),
    "thinking": record(
        {"type": string(), "budget_tokens": integer(), "display": string()},
        text="Tells a template that knows it whether to think; how long, the model decides.",
    ),
    "cache_control": _CACHE_CONTROL,
    "chat_template_kwargs": mapping(text="Variables for the template."),
    "model": string(text="This server's model."),
}
"""What makes a prompt, in messages and in count_tokens."""


def anthropic_error(status: int, message: str, *, code: str | None, param: str | None = None) -> dict[str, object]:
    """The body of an error."""
    kind = _ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    # Agents make room when they read this.
    text = f"prompt is too long: {message}" if code == PromptTooLong.code else message
    return {"type": "error", "error": {"type": kind, "message": text}}


def anthropic_error_frame(error: AxilError) -> dict[str, object]:
    """The event that ends a stream whose status has been sent already."""
    return anthropic_error(status_of(error), error.message, code=error.code, param=error.field)


async def read_chat(front: Front, fields: Fields) -> Chat:
    """The chat of a request; a last turn of the assistant is gone on with.

    Raises:
        Refused: a block, a tool or the choice is not what this server can do.
    """
    given = fields.raw("messages")
    num_messages = len(given) if isinstance(given, list) else 0
    return await front.generator.off_loop(
        num_messages * MESSAGE_CHARACTERS, lambda: normalised_chat(front, _read_chat(fields))
    )


def _read_chat(fields: Fields) -> Chat:
    messages: list[Message] = []
    system = _text_of(fields.raw("system"), fields.name("system"))
    if system:
        messages.append({"role": "system", "content": system})
    items = fields.items("messages")
    called: set[object] = set()
    for item in items:
        turn = _turn(item)
        _check_results(turn, called, item.name("content"))
        called |= {call["id"] for message in turn for call in _dicts(message.get("tool_calls"))}
        messages += turn
    last = messages[-1]
    return Chat(
        messages=messages,
        tools=_read_tools(fields),
        variables=_thinking(fields) | template_variables(fields.mapping("chat_template_kwargs")),
        is_open=last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last,
    )


def cache_ttl_s(fields: Fields) -> float:
    """How long the marks in a request ask for its prompt to be kept; 0 without a mark.

    Raises:
        Refused: a time is none.
    """
    found = 0.0
    holders = [{"cache_control": fields.raw("cache_control")}]
    holders += _dicts(fields.raw("system")) + _dicts(fields.raw("tools"))
    for message in _dicts(fields.raw("messages")):
        holders += _dicts(message.get("content"))
    for holder in holders:
        mark = holder.get("cache_control")
        if isinstance(mark, dict):
            ttl = mark.get("ttl")
            wanted = seconds(ttl if isinstance(ttl, str) else None, field="cache_control.ttl")
            found = max(found, wanted or _DEFAULT_TTL_S)
    return found


def _dicts(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _turn(item: Fields) -> list[Message]:
    role, name = item.string("role"), item.name("content")
    content = item.raw("content")
    match role:
        case "assistant":
            return [_said(content, name)]
        case "user":
            return _asked(content, name)
        case "system":
            return [{"role": "system", "content": _text_of(content, name)}]
        case _:
            raise item.wrong_type("role", "user, assistant or system", role)


def _check_results(turn: Sequence[Message], called: Set[object], name: str) -> None:
    """Refuse the result of a call that stands in no message before it."""
    for message in turn:
        if message["role"] == "tool" and message["tool_call_id"] not in called:
            call_id = shown(message["tool_call_id"])
            raise Refused(
                f"{name} has a tool_result with tool_use_id {call_id}, and no tool_use before it has that id. "
                "Send the message with the call too, or leave the result out.",
                field=name,
            )


def _said(content: object, name: str) -> Message:
    """An assistant's turn."""
    texts, thoughts, calls = [], [], []
    for block, where in _blocks(content, name):
        match block:
            case {"type": "text", "text": str() as text}:
                texts.append(text)
            case {"type": "thinking", "thinking": str() as thought}:
                thoughts.append(thought)
            case {"type": "redacted_thinking"}:
                pass
            case {"type": "tool_use", "id": str() as call_id, "name": str() as tool, "input": dict() as given}:
                calls.append({"id": call_id, "type": "function", "function": {"name": tool, "arguments": given}})
            case _:
                raise _not_taken(block, where, "text, thinking or tool_use")
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _asked(content: object, name: str) -> list[Message]:
    """A user's turn: results of tools are messages of their own, in their place."""
    messages: list[Message] = []
    texts: list[str] = []

    def end_of_text() -> None:
        if texts:
            messages.append({"role": "user", "content": "\n".join(texts)})
            texts.clear()

    for block, where in _blocks(content, name):
        match block:
            case {"type": "text", "text": str() as text} | {
                "type": "document",
                "source": {"type": "text", "data": str() as text},
            }:
                texts.append(text)
            case {"type": "tool_result", "tool_use_id": str() as call_id}:
                end_of_text()
                result = _text_of(block.get("content"), f"{where}.content")
                is_error = block.get("is_error") is True
                text = f"Error: {result}" if is_error else result
                messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
            case _:
                raise _not_taken(block, where, "text or tool_result")
    end_of_text()
    return messages or [{"role": "user", "content": ""}]


def _text_of(content: object, name: str) -> str:
    """The text of blocks that may hold nothing else."""
    texts = []
    for block, where in _blocks(content, name):
        match block:
            case {"type": "text", "text": str() as text} | {"type": "tool_reference", "tool_name": str() as text}:
                texts.append(text)
            case _:
                raise _not_taken(block, where, "text")
    return "\n".join(texts)


def _blocks(content: object, name: str) -> Sequence[tuple[dict[str, object], str]]:
    match content:
        case None:
            return []
        case str():
            return [({"type": "text", "text": content}, name)]
        case list():
            for i, block in enumerate(content):
                if not isinstance(block, dict):
                    raise Refused(f"{name}[{i}] must be a block, got {shown(block)}. Change it.", field=f"{name}[{i}]")
            return [(block, f"{name}[{i}]") for i, block in enumerate(content)]
        case _:
            raise Refused(f"{name} must be a string or a list of blocks, got {shown(content)}.", field=name)


def _not_taken(block: dict[str, object], where: str, wanted: str) -> Refused:
    kind = block.get("type")
    if isinstance(kind, str) and kind in _NO_TEXT:
        return Refused(
            f"{where} is of type {kind}: this model reads text only; {_NO_TEXT[kind]} can't be used. Leave it out.",
            field=where,
        )
    return Refused(
        f"{where} must be a whole block of type {wanted}, got {shown(block)}. Change it.",
        field=where,
    )


def _read_tools(fields: Fields) -> ToolWish:
    choice = fields.fields("tool_choice")
    functions: list[dict[str, object]] = []
    for item in fields.items("tools"):
        kind, name = item.string("type"), item.string("name")
        if kind not in (None, "custom"):
            raise Refused(
                f"{item.name('type')} must be custom, got {shown(kind)}: this server has no tools of its own. "
                "Leave it out.",
                field=item.name("type"),
            )
        if not name:
            raise Refused(f"{item.name('name')} is missing. Name the tool.", field=item.name("name"))
        item.raw("cache_control")
        schema = item.mapping("input_schema") or {"type": "object", "properties": {}}
        functions.append({"name": name, "description": item.string("description") or "", "parameters": schema})
    wish = made_wish(functions, is_single=choice.boolean("disable_parallel_tool_use", False))
    match choice.string("type"):
        case "none":
            return replace(wish, choice="none")
        case "any" if functions:
            return replace(wish, choice="required")
        case "tool":
            only = wish.only([choice.string("name") or ""], field=choice.name("name"))
            return replace(only, choice="required", is_single=True)
        case "any":
            raise Refused("tool_choice asks for a call, but tools is empty. Send tools.", field="tool_choice")
        case _:
            return wish


def _thinking(fields: Fields) -> dict[str, object]:
    thinking = fields.fields("thinking")
    kind = thinking.string("type")
    thinking.integer("budget_tokens")
    thinking.string("display")
    return {} if kind is None else {"enable_thinking": kind != "disabled"}
