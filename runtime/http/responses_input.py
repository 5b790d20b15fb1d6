"""Reads what `/v1/responses` takes: instructions and input items to a chat. Writes no answers."""

from __future__ import annotations

import json

from runtime.text.template import Message, template_variables
from wire.errors import Refused

from .chat_messages import tool_call
from .chat_prompt import MESSAGE_CHARACTERS, Chat, effort_variables, normalised_chat
from .fields import Fields
from .front import Front
from .schema import Schema, either, list_of, mapping, record, shown, string
from .tools import FLAT_TOOL_FIELDS, flat_name, read_flat_tools

INPUT_FIELDS: dict[str, Schema] = {
    **FLAT_TOOL_FIELDS,
    "input": either(string(), list_of(mapping()), text="A text, or items: messages, calls, their outputs, thoughts."),
    "instructions": string(text="What stands before all items."),
    "reasoning": record(
        {"effort": string(), "summary": string(), "generate_summary": string()},
        text="effort is for the template; none also sets its enable_thinking to false.",
    ),
    "chat_template_kwargs": mapping(text="Variables for the template."),
}
"""What makes a prompt."""

_TEXT_PARTS = ("input_text", "output_text", "text")
_ROLES = ("user", "assistant", "system", "developer")
_SAID = ("reasoning", "function_call", "custom_tool_call")
_ADDED_TOOLS = "additional_tools"
_LEFT_OUT = frozenset(
    (
        _ADDED_TOOLS,
        *("apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "compaction", "computer_call"),
        *(
            "computer_call_output",
            "context_compaction",
            "file_search_call",
            "image_generation_call",
            "local_shell_call",
        ),
        *("local_shell_call_output", "mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools"),
        *("shell_call", "shell_call_output", "tool_search_call", "tool_search_output", "web_search_call"),
    )
)
"""Items of what OpenAI's own servers do, which a chat begun there brings along."""


async def read_chat(front: Front, fields: Fields) -> Chat:
    """The chat of a request.

    Raises:
        Refused: an item or a tool is not what this server can do.
    """
    given = fields.raw("input")
    num_items = len(given) if isinstance(given, list) else 0
    return await front.generator.off_loop(
        num_items * MESSAGE_CHARACTERS, lambda: normalised_chat(front, _read_chat(fields))
    )


def _read_chat(fields: Fields) -> Chat:
    items = _items(fields)
    messages: list[Message] = []
    instructions = fields.string("instructions")
    if instructions:
        messages.append({"role": "system", "content": instructions})
    assistant: Message | None = None
    for i, item in enumerate(items):
        where = f"input[{i}]"
        kind = item.get("type") or "message"
        if isinstance(kind, str) and kind in _LEFT_OUT:
            continue
        if kind in _SAID or (kind == "message" and item.get("role") == "assistant"):
            # A text behind calls joins them: what they gave must be told right behind them.
            if assistant is None or (kind == "reasoning" and "tool_calls" in assistant):
                assistant = {"role": "assistant", "content": ""}
                messages.append(assistant)
            _add_said(assistant, item, where)
            continue
        assistant = None
        messages.append(_asked(item, where))
    if not messages:
        raise Refused("input holds no message, nor a call's output. Send one.", field="input")
    reasoning = fields.fields("reasoning")
    reasoning.string("summary")
    reasoning.string("generate_summary")
    return Chat(
        messages=_with_one_start(messages),
        tools=read_flat_tools(
            fields,
            [Fields(item, f"input[{i}]") for i, item in enumerate(items) if item.get("type") == _ADDED_TOOLS],
        ),
        variables=effort_variables(reasoning.string("effort"))
        | template_variables(fields.mapping("chat_template_kwargs")),
    )


def _items(fields: Fields) -> list[dict[str, object]]:
    match fields.raw("input"):
        case str() as text:
            return [{"role": "user", "content": text}]
        case [_, *_] as items:
            return [item for item in items if isinstance(item, dict)]  # the schema lets nothing else in
        case other:
            raise fields.wrong_type("input", "a string or a list of items, not empty", other)


def _add_said(assistant: Message, item: dict[str, object], where: str) -> None:
    """Add what the model has thought, said or called to its turn."""
    match item:
        case {"type": "reasoning"}:
            thought = _text(item.get("content") or item.get("summary"), where, ("reasoning_text", "summary_text"))
            if thought:
                assistant["reasoning_content"] = thought
        case {"type": "function_call", "name": str() as name, "arguments": str() as arguments}:
            space = item.get("namespace")
            _add_call(assistant, item, flat_name(space if isinstance(space, str) else "", name), arguments)
        case {"type": "custom_tool_call", "name": str() as name, "input": str() as text}:
            _add_call(assistant, item, name, json.dumps({"input": text}))
        case {"type": "function_call"}:
            raise Refused(f"{where} must have a name and arguments, as strings. Change it.", field=where)
        case {"type": "custom_tool_call"}:
            raise Refused(f"{where} must have a name and an input, as strings. Change it.", field=where)
        case _:
            text = _text(item.get("content"), where, _TEXT_PARTS)
            before = assistant["content"]
            assistant["content"] = f"{before}\n{text}" if before else text


def _add_call(assistant: Message, item: dict[str, object], name: str, arguments: str) -> None:
    calls = assistant.setdefault("tool_calls", [])
    assert isinstance(calls, list)
    call_id = item.get("call_id")
    calls.append(tool_call(name, arguments, call_id if isinstance(call_id, str) else None))


def _asked(item: dict[str, object], where: str) -> Message:
    match item:
        case {"type": "function_call_output" | "custom_tool_call_output", "call_id": str() as call_id}:
            return {
                "role": "tool",
                "tool_call_id": call_id,
                "content": _text(item.get("output"), where, _TEXT_PARTS),
            }
        case {"role": str() as role} if item.get("type") in (None, "message") and role in _ROLES:
            return {"role": role, "content": _text(item.get("content"), where, _TEXT_PARTS)}
        case {"type": "item_reference"}:
            raise Refused(f"{where} refers to an item, but nothing is stored here. Send the item.", field=where)
        case _:
            raise Refused(
                f"{where} must be a message, a reasoning, a function_call or its output, got {shown(item)}. Change it.",
                field=where,
            )


def _text(content: object, where: str, kinds: tuple[str, ...]) -> str:
    """The text of parts that may be nothing else; several are joined by line ends."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            texts = []
            for part in content:
                match part:
                    case {"type": str() as kind, "text": str() as text} if kind in kinds:
                        texts.append(text)
                    case {"type": "refusal", "refusal": str() as text}:
                        texts.append(text)
                    case _:
                        raise Refused(
                            f"{where} must hold text only, got {shown(part)}: that's what this model reads. Change it.",
                            field=where,
                        )
            return "\n".join(texts)
        case _:
            raise Refused(f"{where} must hold a string or a list of parts, got {shown(content)}.", field=where)


def _with_one_start(messages: list[Message]) -> list[Message]:
    """The messages, of whose system and developer ones at the start one is made: templates take one at most."""
    num = next((i for i, message in enumerate(messages) if message["role"] not in ("system", "developer")), None)
    start = messages[:num]
    if len(start) < 2:
        return messages
    text = "\n\n".join(str(message["content"]) for message in start)
    return [{"role": "system", "content": text}, *messages[len(start) :]]
