"""From a chat to the prompt that the model's template makes of it. Knows no API: each translates into `Chat`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from runtime.chat_source import ChatSource
from runtime.text.template import USUAL_ROLES, ChatTemplate, Message, template_variables
from wire.errors import Refused

from .chat_messages import MESSAGES, read_messages
from .fields import Fields
from .front import Front
from .normaliser import Changes, normalised
from .schema import Schema, boolean, mapping, string
from .tools import CHAT_TOOL_FIELDS, ToolWish, read_chat_tools

MESSAGE_CHARACTERS = 32
"""Reading and rendering a message takes the time of tokenising that many characters, besides its text."""

CHAT_PROMPT_FIELDS: dict[str, Schema] = {
    "messages": MESSAGES,
    **CHAT_TOOL_FIELDS,
    "reasoning_effort": string(text="For the template; none also sets its enable_thinking to false."),
    "chat_template_kwargs": mapping(text="Variables for the template."),
    "continue_final_message": boolean(text="Go on with the last message instead of beginning a new one."),
    "add_generation_prompt": boolean(text="Begin the assistant's turn. Default true."),
}
"""A chat, as several routes take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """What is to be answered: with `is_open` by going on with the last message, with `with_prompt` in a new one.

    `changes` names what the server has changed in it.
    """

    messages: list[Message]
    tools: ToolWish = field(default_factory=ToolWish)
    variables: dict[str, object] = field(default_factory=dict)
    is_open: bool = False
    with_prompt: bool = True
    changes: Changes = ()


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered chat."""

    source: ChatSource
    token_ids: Sequence[int]

    @property
    def text(self) -> str:
        """What the template has made of it."""
        return self.source.text


async def read_chat(front: Front, fields: Fields) -> Chat:
    """The chat in a request of OpenAI's shape.

    Raises:
        Refused: a message, a tool or an option is wrong.
    """
    given = fields.raw("messages")
    num_messages = len(given) if isinstance(given, list) else 0
    roles = USUAL_ROLES if front.template is None else front.template.roles
    messages = await front.generator.off_loop(num_messages * MESSAGE_CHARACTERS, lambda: read_messages(fields, roles))
    is_open = fields.boolean("continue_final_message", False)
    with_prompt = fields.boolean("add_generation_prompt", not is_open)
    if is_open and with_prompt:
        raise Refused(
            "continue_final_message and add_generation_prompt can't both be true. Set one of them.",
            field="add_generation_prompt",
        )
    chat = Chat(
        messages=messages,
        tools=read_chat_tools(fields),
        variables=effort_variables(fields.string("reasoning_effort"))
        | template_variables(fields.mapping("chat_template_kwargs")),
        is_open=is_open,
        with_prompt=with_prompt,
    )
    return normalised_chat(front, chat)


def normalised_chat(front: Front, chat: Chat) -> Chat:
    """The chat as the server's flags want prompts written."""
    messages, tools, changes = normalised(chat.messages, chat.tools, front.launch.config)
    return replace(chat, messages=messages, tools=tools, changes=changes) if changes else chat


def effort_variables(effort: str | None) -> dict[str, object]:
    """What templates are told of how much a model shall think."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort} | ({"enable_thinking": False} if effort == "none" else {})


async def rendered(front: Front, chat: Chat) -> ChatPrompt:
    """The chat as the model's template writes it.

    Raises:
        Refused: the model has no template, or it does not take the messages or the tools.
    """
    template = front.template
    if template is None:
        raise Refused(
            "this model has no chat template. Use /v1/completions, or start the server with --chat-template FILE.",
            field="messages",
        )
    if chat.tools.shown and not template.reads_tools:
        raise Refused(
            "this model's chat template takes no tools. Leave tools out, or start the server with another model or "
            "with --chat-template FILE.",
            field="tools",
        )
    num_characters = sum(MESSAGE_CHARACTERS + len(str(message["content"])) for message in chat.messages)
    text, token_ids = await front.generator.encode_chat(
        lambda: _text(template, chat), num_characters=num_characters, field="messages"
    )
    source = ChatSource(
        messages=chat.messages,
        tools=chat.tools.shown,
        variables=chat.variables | {"is_open": chat.is_open, "with_prompt": chat.with_prompt},
        text=text,
        render=functools.partial(_variant, template, chat),
        changes=chat.changes,
    )
    return ChatPrompt(source, token_ids)


def _variant(template: ChatTemplate, chat: Chat, messages: Sequence[Message], *, with_tools: bool) -> str:
    tools = chat.tools if with_tools else ToolWish()
    variant = replace(chat, messages=list(messages), tools=tools, is_open=False, with_prompt=False)
    return _text(template, variant)


def _text(template: ChatTemplate, chat: Chat) -> str:
    messages = [_of_known_role(message, template) for message in chat.messages]
    variables = chat.variables | ({"tools": list(chat.tools.shown)} if chat.tools.shown else {})
    if chat.is_open:
        return template.render_open(messages, variables=variables)
    return template.render(messages, add_generation_prompt=chat.with_prompt, variables=variables)


def _of_known_role(message: Message, template: ChatTemplate) -> Message:
    """Most templates leave out what a developer says, or write a role that their model never saw."""
    if message.get("role") == "developer" and "developer" not in template.named_roles:
        return {**message, "role": "system"}
    return message


async def read_chat_prompt(front: Front, fields: Fields) -> Sequence[int]:
    """Token ids of the chat in a request of OpenAI's shape.

    Raises:
        Refused: as `read_chat` and `rendered`.
    """
    return (await rendered(front, await read_chat(front, fields))).token_ids
