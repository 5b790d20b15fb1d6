"""Reads a chat from a request: messages, in OpenAI's shape, to the prompt's token ids by the model's template."""

from __future__ import annotations

from collections.abc import Set

from runtime.text.template import USUAL_ROLES, Message, check_role, template_variables
from wire.errors import Refused

from .fields import Fields
from .front import Front
from .schema import Schema, boolean, either, list_of, mapping, record, shown, string

_MESSAGE_CHARACTERS = 32
"""Reading and rendering a message takes the time of tokenising that many characters, besides its text."""

CHAT_PROMPT_FIELDS: dict[str, Schema] = {
    "messages": list_of(
        record(
            {
                "role": string(),
                "content": either(string(), list_of(record({"type": string(), "text": string()}))),
            }
        ),
        text="The chat, in OpenAI's shape; the model's template says which roles there are.",
    ),
    "chat_template_kwargs": mapping(text="Variables for the template."),
    "continue_final_message": boolean(text="Go on with the last message instead of beginning a new one."),
    "add_generation_prompt": boolean(text="Begin the assistant's turn. Default true."),
}
"""A chat, as several routes take it."""


async def read_chat_prompt(front: Front, fields: Fields) -> list[int]:
    """Token ids of a chat, up to where the assistant's turn, or the rest of an open one, begins.

    Raises:
        Refused: a message or an option is wrong, the model has no chat template, or it does not take the messages.
    """
    given = fields.raw("messages")
    num_messages = len(given) if isinstance(given, list) else 0
    roles = USUAL_ROLES if front.template is None else front.template.roles
    messages = await front.generator.off_loop(num_messages * _MESSAGE_CHARACTERS, lambda: _read_messages(fields, roles))
    variables = template_variables(fields.mapping("chat_template_kwargs"))
    is_open = fields.boolean("continue_final_message", False)
    with_prompt = fields.boolean("add_generation_prompt", not is_open)
    if is_open and with_prompt:
        raise Refused(
            "continue_final_message and add_generation_prompt can't both be true. Set one of them.",
            field="add_generation_prompt",
        )
    template = front.template
    if template is None:
        raise Refused(
            "this model has no chat template. Use /v1/completions, or start the server with --chat-template FILE.",
            field="messages",
        )

    def rendered() -> str:
        if is_open:
            return template.render_open(messages, variables=variables)
        return template.render(messages, add_generation_prompt=with_prompt, variables=variables)

    num_characters = sum(_MESSAGE_CHARACTERS + len(str(message["content"])) for message in messages)
    text = await front.generator.off_loop(num_characters, rendered)
    # The template has written the special tokens itself.
    return await front.generator.encode(text, add_special_tokens=False, field="messages")


def _read_messages(fields: Fields, roles: Set[str]) -> list[Message]:
    items = fields.items("messages")
    if not items:
        raise Refused("messages is empty; it must hold at least one message. Send one.", field="messages")
    messages = []
    for item in items:
        role = item.string("role")
        if not role:
            raise Refused(f"{item.name('role')} is missing. Set it to user, for example.", field=item.name("role"))
        check_role(role, roles, field=item.name("role"))
        messages.append({**item.everything(), "content": _content(item)})
    return messages


def _content(item: Fields) -> str:
    """A message's text; several text parts are joined by line ends."""
    value = item.raw("content")
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return "\n".join(_part(part) for part in item.items("content"))
        case _:
            raise item.wrong_type("content", "a string or a list of parts", value)


def _part(part: Fields) -> str:
    kind = part.string("type")
    if kind != "text":
        raise Refused(
            f"{part.name('type')} must be text, got {shown(kind)}: this model reads text only. Leave the part out.",
            field=part.name("type"),
        )
    text = part.string("text")
    if text is None:
        raise part.wrong_type("text", "a string", text)
    return text
