"""What must hold of a model's chats, and where in one it does not. Knows no causes and no remedies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from runtime.text.pieces import Call, Text, Thought
from runtime.text.shared import num_shared

from .conversations import Answer, Conversation
from .play import NOON, Exchange, Model, joined, play

Rule = Literal["history", "answer", "read", "clock"]

RULES: dict[Rule, str] = {
    "history": "turn n's prompt is a token prefix of turn n+1's",
    "answer": "what was generated in turn n stands in turn n+1, token for token",
    "read": "what the model writes is read as the thought, text and calls that it is",
    "clock": "a prompt does not depend on when it is rendered",
}

_STEPS: dict[str, timedelta] = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "month": timedelta(days=31),
    "year": timedelta(days=366),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where a rule is broken: turn `turn` (from 1) had `before`, and `after` came where it should have stood.

    The ids are equal before token `at`, which begins at the character `at_character` of `before`. From `asks_from` on,
    `before` asks for the answer, which begins at `answer_from`. `every` is how often the clock changes the prompt.
    """

    rule: Rule
    conversation: Conversation
    turn: int
    before: str
    after: str
    ids_before: tuple[int, ...]
    ids_after: tuple[int, ...]
    at: int
    at_character: int
    asks_from: int
    answer_from: int
    every: str | None = None

    @property
    def lost_tokens(self) -> int:
        """Tokens that were computed and are of no use to the next turn."""
        return len(self.ids_before) - self.at


def broken(conversation: Conversation, model: Model) -> Iterator[Fork]:
    """The places in the chat where a rule is broken, in order.

    Raises:
        Refused: the template does not take the chat.
    """
    exchanges = play(conversation, model)
    for k, exchange in enumerate(exchanges):
        answer = conversation.turns[k].answer
        if not _is_read(answer, exchange):
            yield _misread(conversation, k, exchange, model)
        if k + 1 < len(exchanges):
            fork = _parting(conversation, k, exchange, exchanges[k + 1].prompt, model)
            if fork is not None:
                yield fork


def _parting(conversation: Conversation, k: int, exchange: Exchange, after: str, model: Model) -> Fork | None:
    """Where turn k+1 leaves what turn k has computed."""
    prompt_ids, ids_after = model.encode(exchange.prompt), model.encode(after)
    computed, before = prompt_ids, exchange.prompt
    is_answer_kept = conversation.sends_thoughts or not conversation.turns[k].answer.thought
    if ids_after[: len(prompt_ids)] == prompt_ids and is_answer_kept:
        computed, before = prompt_ids + model.encode(exchange.generated), exchange.prompt + exchange.generated
    at = num_shared(computed, ids_after)
    if at == len(computed):
        return None
    return Fork(
        rule="history" if computed is prompt_ids else "answer",
        conversation=conversation,
        turn=k + 1,
        before=before,
        after=after,
        ids_before=tuple(computed),
        ids_after=tuple(ids_after),
        at=at,
        at_character=_num_characters(computed[:at], before, after, model),
        asks_from=exchange.asks_from,
        answer_from=len(exchange.prompt),
    )


def _num_characters(ids: Sequence[int], before: str, after: str, model: Model) -> int:
    """How many characters both texts begin with in the tokens `ids`."""
    text = model.tokenizer.decode(ids, skip_special_tokens=False)
    return min(num_shared(text, before), num_shared(text, after))


def _is_read(answer: Answer, exchange: Exchange) -> bool:
    calls = [piece for piece in exchange.read if isinstance(piece, Call)]
    return (
        [(call.name, json.loads(call.arguments)) for call in calls]
        == [(call.name, json.loads(call.arguments)) for call in answer.calls]
        and joined(exchange.read, Thought).strip() == answer.thought.strip()
        # Not all templates write text beside calls; then none was generated.
        and joined(exchange.read, Text).strip() in {answer.text.strip(), *([""] if answer.calls else [])}
    )


def _misread(conversation: Conversation, k: int, exchange: Exchange, model: Model) -> Fork:
    ids = tuple(model.encode(exchange.generated))
    return Fork(
        rule="read",
        conversation=conversation,
        turn=k + 1,
        before=exchange.generated,
        after="; ".join(map(repr, exchange.read)),
        ids_before=ids,
        ids_after=ids,
        at=0,
        at_character=0,
        asks_from=0,
        answer_from=0,
    )


def clock_fork(conversation: Conversation, model: Model) -> Fork | None:
    """Where the first prompt changes with the time, if it does.

    Raises:
        Refused: the template does not take the chat.
    """

    def prompt(now: datetime) -> str:
        messages = conversation.opening() + conversation.asked(0)
        return model.render(messages, conversation, asks=True, now=now)

    before = prompt(NOON)
    for every, step in _STEPS.items():
        after = prompt(NOON + step)
        if after != before:
            ids_before, ids_after = model.encode(before), model.encode(after)
            at = num_shared(ids_before, ids_after)
            return Fork(
                rule="clock",
                conversation=conversation,
                turn=1,
                before=before,
                after=after,
                ids_before=tuple(ids_before),
                ids_after=tuple(ids_after),
                at=at,
                at_character=_num_characters(ids_before[:at], before, after, model),
                asks_from=len(before),
                answer_from=len(before),
                every=every,
            )
    return None
