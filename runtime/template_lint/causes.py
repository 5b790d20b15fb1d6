"""Why a template breaks a rule, as far as the texts show it, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from runtime.text.pieces import Call
from runtime.text.shared import num_shared

from .conversations import Conversation
from .rules import Fork

Cause = Literal[
    "reasoning",
    "generation_prompt",
    "tools",
    "system",
    "notes",
    "whitespace",
    "call_ids",
    "calls",
    "tokens",
    "parser",
    "time",
    "other",
]

WHAT: dict[Cause, str] = {
    "reasoning": "what the assistant thought is left out of later prompts, or written elsewhere",
    "generation_prompt": "the answer is asked for with words that the history doesn't have in front of it",
    "tools": "the tools are written in another place each turn",
    "system": "the system prompt is written in another place each turn",
    "notes": "a system message in the middle is written in another place",
    "whitespace": "whitespace around the answer is cut off",
    "call_ids": "calls are written with ids, which the server makes up: the model can't have written them",
    "calls": "calls are written in other words than the model's",
    "tokens": "the text is the same, but across the fork it is cut into other tokens",
    "parser": "this server's parser of answers doesn't read what the template writes",
    "time": "the time or date is in the prompt",
    "other": "the texts differ",
}

REMEDY: dict[Cause, str] = {
    "reasoning": "serve with --chat-template and a template that writes reasoning_content in all turns",
    "generation_prompt": "write the same in front of earlier answers, in a template of your own (--chat-template)",
    "tools": "write the tools in front of the first message, in a template of your own (--chat-template)",
    "system": "write the system prompt in front of the first message, in a template of your own (--chat-template)",
    "notes": "put system messages at the start, or write them in their place in a template of your own",
    "whitespace": "write message.content without trim or strip, in a template of your own (--chat-template)",
    "call_ids": "leave ids of calls out of the history, in a template of your own (--chat-template)",
    "calls": "write calls as the model does (JSON by tojson, arguments in their order) in a template of your own",
    "tokens": "let a special token, or text that joins with nothing, stand in front of and behind answers",
    "parser": "name the right --tool-call-parser and --reasoning-parser",
    "time": "send a fixed date in chat_template_kwargs, or write the date in the last message only",
    "other": "compare the two texts above with the template",
}

SEND_THOUGHTS = "have clients send reasoning_content back in their messages: then all rules hold for this chat"
"""The remedy of what breaks only where they do not."""


def cause_of(fork: Fork) -> Cause:
    """The likeliest cause."""
    if fork.rule == "clock":
        return "time"
    if fork.rule == "read":
        return "parser"
    if fork.after.startswith(fork.before):
        return "tokens"
    at = num_shared(fork.before, fork.after)
    if fork.rule == "history" and at >= fork.asks_from:
        return "generation_prompt"
    return next(_parts_moved(fork, at), "other")


def _parts_moved(fork: Fork, at: int) -> Iterator[Cause]:
    conversation, before, after = fork.conversation, fork.before, fork.after

    def moved(text: str) -> bool:
        return bool(text) and before.find(text, at) >= 0 and before.find(text, at) != after.find(text, at)

    turns = conversation.turns[: fork.turn]
    if any(turn.answer.thought and turn.answer.thought in before[at:] and moved(turn.answer.thought) for turn in turns):
        yield "reasoning"
    if fork.rule == "answer" and _differs_in_front(before[fork.answer_from :], after[fork.answer_from :]):
        yield "generation_prompt"
    new = conversation.turns[fork.turn].note if fork.turn < len(conversation.turns) else ""
    if new and new not in before and new in after[: fork.asks_from]:
        yield "notes"
    descriptions = [text for tool in conversation.tools if (text := _description(tool))]
    if any(before.find(text) != after.find(text) for text in descriptions):
        yield "tools"
    if conversation.system and before.find(conversation.system) != after.find(conversation.system):
        yield "system"
    if any(turn.note and before.find(turn.note) != after.find(turn.note) for turn in turns):
        yield "notes"
    answer = turns[-1].answer
    if answer.text != answer.text.strip() and answer.text not in after and answer.text.strip() in after:
        yield "whitespace"
    calls = [call for turn in turns for call in turn.answer.calls]
    if calls:
        yield "call_ids" if _is_in_id(fork, at) else "calls"


def _differs_in_front(generated: str, history: str) -> bool:
    """Whether an answer begins with other words in the history, or without its first ones."""
    spaces = len(generated) - len(generated.lstrip())
    return num_shared(generated, history) <= spaces or any(
        history.startswith(generated[start:]) for start in range(1, len(generated))
    )


def _is_in_id(fork: Fork, at: int) -> bool:
    """Whether the texts part at the end of a call's id; ours differ in the last letter."""
    return fork.before[at - 8 : at] == fork.after[at - 8 : at] and fork.before[at - 8 : at - 4] == "call"


def _description(tool: dict[str, object]) -> str:
    function = tool.get("function")
    return str(function.get("description", "")) if isinstance(function, dict) else ""


def shape(conversation: Conversation) -> str:
    """The chat in a line: `system, user, assistant(thought, call), tool, assistant`."""
    words = ["tools"] if conversation.tools else []
    words += ["system"] if conversation.system else []
    for k, turn in enumerate(conversation.turns):
        words += [str(message["role"]) for message in conversation.asked(k)]
        inside = ["thought"] if turn.answer.thought else []
        inside += [f"call {_short(call)}" for call in turn.answer.calls]
        words.append(f"assistant({', '.join(inside)})" if inside else "assistant")
    extra = [f"{name}={json.dumps(value)}" for name, value in conversation.variables.items()]
    extra += ["thoughts not sent back"] if not conversation.sends_thoughts else []
    return ", ".join(words) + (f" [{', '.join(extra)}]" if extra else "")


def _short(call: Call) -> str:
    return f"{call.name}({call.arguments if len(call.arguments) < 32 else '…'})"
