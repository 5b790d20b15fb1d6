"""A chat as a server and its client would have it: prompts, what the model writes, and what of it comes back.

The model writes as its template shows: the answer's own text in a chat that ends with it. Where the template leaves a
thought or a call out, they are written as the model's form has them. Finds no faults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from runtime.http.chat_messages import tool_call
from runtime.text.answer_form import AnswerForm
from runtime.text.pieces import Call, Piece, Text, Thought
from runtime.text.shared import num_shared
from runtime.text.template import ChatTemplate, Message
from runtime.text.tokenizer import Tokenizer
from runtime.text.tool_calls.form import Tool

from .conversations import Answer, Conversation, call_id

_MARK = "\ue000"
"""Stands for an answer where only its place matters; no template begins with it."""

NOON = datetime(2026, 3, 14, 12, 0, 0)


@dataclass(frozen=True, slots=True)
class Model:
    """What decides how a model's chats are written."""

    template: ChatTemplate
    tokenizer: Tokenizer
    form: AnswerForm

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendered text."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def render(
        self, messages: Sequence[Message], conversation: Conversation, *, asks: bool, now: datetime = NOON
    ) -> str:
        """The chat's text; with `asks`, up to where the next answer begins.

        Raises:
            Refused: the template does not take these messages.
        """
        variables: dict[str, object] = {**conversation.variables, "strftime_now": now.strftime}
        if conversation.tools:
            variables["tools"] = list(conversation.tools)
        return self.template.render(messages, add_generation_prompt=asks, variables=variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One turn: its prompt, of which the characters from `asks_from` ask for the answer, and what was answered."""

    prompt: str
    asks_from: int
    generated: str
    read: tuple[Piece, ...]


def play(conversation: Conversation, model: Model) -> list[Exchange]:
    """All turns in order, each answer's message being what was read of it.

    Raises:
        Refused: the template does not take the chat.
    """
    messages = conversation.opening()
    exchanges = []
    for k, turn in enumerate(conversation.turns):
        messages += conversation.asked(k)
        prompt = model.render(messages, conversation, asks=True)
        history = model.render(messages, conversation, asks=False)
        generated = _generated(conversation, k, model, messages, prompt, history)
        pieces = _read(generated, prompt, conversation, model)
        exchanges.append(
            Exchange(
                prompt=prompt,
                asks_from=num_shared(prompt, history),
                generated=generated,
                read=tuple(pieces),
            )
        )
        messages.append(_message(pieces, k, sends_thoughts=conversation.sends_thoughts or not turn.answer.thought))
    return exchanges


def _generated(
    conversation: Conversation, k: int, model: Model, messages: Sequence[Message], prompt: str, history: str
) -> str:
    """What the model writes behind `prompt`, without the token that ends it."""
    answer = conversation.turns[k].answer
    plain = answer.text.strip()
    own = _own_message(answer, plain, k)
    rendered = model.render([*messages, own], conversation, asks=False)
    marked = model.render([*messages, {"role": "assistant", "content": _MARK}], conversation, asks=False)
    common = len(prompt)
    if not rendered.startswith(prompt):
        common = min(num_shared(prompt, rendered), num_shared(prompt, marked))
    is_kept = common >= num_shared(prompt, history)
    written = _before_end(rendered[common:], model.tokenizer) if is_kept else plain
    if plain and answer.text != plain:
        written = written.replace(plain, answer.text, 1)
    return _with_thought(answer, model.form, prompt, written) + _missing_calls(answer, model.form, written)


def _own_message(answer: Answer, text: str, k: int) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if answer.thought:
        message["reasoning_content"] = answer.thought
    if answer.calls:
        # Other ids than those that the client has: a model can't know what the server will call its calls.
        message["tool_calls"] = [
            tool_call(call.name, call.arguments, call_id(k, i)[:-1] + "a") for i, call in enumerate(answer.calls)
        ]
    return message


def _before_end(written: str, tokenizer: Tokenizer) -> str:
    ends = [at for token in tokenizer.eos_token_ids if (at := written.find(tokenizer.token_text(token))) >= 0]
    return written[: min(ends, default=len(written))]


def _with_thought(answer: Answer, form: AnswerForm, prompt: str, written: str) -> str:
    tags = form.thoughts
    if tags is None or not answer.thought or answer.thought in written:
        return written
    empty = re.compile(rf"\A\s*{re.escape(tags.begin)}\s*{re.escape(tags.end)}\s*")
    begin = "" if tags.is_open_in(prompt) else f"{tags.begin}\n"
    return f"{begin}{answer.thought}\n{tags.end}\n\n{empty.sub('', written)}"


def _missing_calls(answer: Answer, form: AnswerForm, written: str) -> str:
    if form.calls is None:
        return ""
    return "".join(form.calls.write(call) for call in answer.calls if call.name not in written)


def _read(generated: str, prompt: str, conversation: Conversation, model: Model) -> list[Piece]:
    """What the server reads of the answer, hidden special tokens left out as it leaves them out."""
    hidden = model.tokenizer.special_ids - model.form.shown_ids
    ids = [token_id for token_id in model.encode(generated) if token_id not in hidden]
    text = model.tokenizer.decode(ids, skip_special_tokens=False)
    tools = [Tool(name=name) for name in conversation.tool_names]
    reader = model.form.reader(tools=tools, prompt=prompt)
    return [*reader.push(text), *reader.flush()]


def joined(pieces: Sequence[Piece], kind: type[Text] | type[Thought]) -> str:
    """The text of all pieces of a kind."""
    return "".join(piece.text for piece in pieces if isinstance(piece, kind))


def _message(pieces: Sequence[Piece], k: int, *, sends_thoughts: bool) -> Message:
    """The answer as its client sends it back."""
    message: Message = {"role": "assistant", "content": joined(pieces, Text)}
    thought = joined(pieces, Thought)
    if thought and sends_thoughts:
        message["reasoning_content"] = thought
    calls = [piece for piece in pieces if isinstance(piece, Call)]
    if calls:
        message["tool_calls"] = [tool_call(call.name, call.arguments, call_id(k, i)) for i, call in enumerate(calls)]
    return message


def told(conversation: Conversation) -> list[Mapping[str, object]]:
    """The chat for a reader: roles and texts, answers with their thoughts and calls."""
    messages: list[Mapping[str, object]] = [*conversation.opening()]
    for k, turn in enumerate(conversation.turns):
        messages += conversation.asked(k)
        messages.append(_own_message(turn.answer, turn.answer.text, k))
    return messages
