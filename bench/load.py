"""Sends a workload to a server at a pace, and waits for every answer. Knows no HTTP and draws no conclusions."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from bench.client import Client
from bench.context import Context, Said, Speaker, comparable
from bench.gate import Gate, OpenGate, RandomGate
from bench.reuse import Exchange
from bench.summary import Answer, Failure, Run, Sent
from bench.workload import Conversation, Turn, Workload


@dataclass(frozen=True, slots=True)
class Closed:
    """Closed loop: `concurrency` conversations are open at any time, the next begins when one ends."""

    concurrency: int


@dataclass(frozen=True, slots=True)
class Open:
    """Open loop: conversations begin at random times (Poisson), whether or not the server keeps up."""

    rate_per_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class OpenTurns:
    """All conversations are open; at random times (Poisson) one that is ready sends its next turn, `most` at a time."""

    rate_per_s: float
    seed: int
    most: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """Each conversation begins at its recorded time."""


Pace = Closed | Open | OpenTurns | Recorded
OnSent = Callable[[Sent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long one request may take, and the point in time (`time.monotonic`) at which all sending ends."""

    request_s: float
    deadline_s: float

    def left_s(self) -> float:
        """Seconds that a request starting now may take."""
        return min(self.request_s, self.deadline_s - time.monotonic())


async def run(
    client: Client,
    speaker: Speaker,
    workload: Workload,
    pace: Pace,
    limits: Limits,
    on_sent: OnSent,
) -> Run:
    """Send every request of `workload`; `on_sent` hears of each as it ends. Requests past the deadline fail.

    To be run on asyncio's own loop: what is shareable is counted in the order of sending, and uvloop (0.23) writes what
    several connections send in one of its turns in no order.
    """
    warming = _Sending(client, speaker, workload.is_chat, limits, lambda _: None, OpenGate())
    for conversation in workload.warmup:
        await warming.converse(conversation)
    sending = _Sending(client, speaker, workload.is_chat, limits, on_sent, _gate(pace, limits))
    started_s = time.monotonic()
    await _paced(sending, workload.conversations, pace, limits)
    return Run(sent=sending.sent, duration_s=time.monotonic() - started_s, warmup=warming.sent)


def _gate(pace: Pace, limits: Limits) -> Gate:
    if isinstance(pace, OpenTurns):
        return RandomGate(pace.rate_per_s, seed=pace.seed, most=pace.most, deadline_s=limits.deadline_s)
    return OpenGate()


async def _paced(sending: _Sending, conversations: Sequence[Conversation], pace: Pace, limits: Limits) -> None:
    waiting = iter(conversations)

    async def worker() -> None:
        for conversation in waiting:
            await sending.converse(conversation)

    async def at(due_s: float) -> None:
        await asyncio.sleep(max(0.0, min(due_s, limits.deadline_s) - time.monotonic()))

    due_s = started_s = time.monotonic()
    async with sending.gate, asyncio.TaskGroup() as tasks:
        match pace:
            case Closed():
                for _ in range(pace.concurrency):
                    tasks.create_task(worker())
            case Open():
                draw = random.Random(pace.seed)
                for conversation in waiting:
                    tasks.create_task(sending.converse(conversation))
                    due_s += draw.expovariate(pace.rate_per_s)
                    await at(due_s)
            case OpenTurns():
                for conversation in waiting:
                    tasks.create_task(sending.converse(conversation))
            case Recorded():
                for conversation in sorted(waiting, key=lambda each: each.starts_s or 0.0):
                    await at(started_s + (conversation.starts_s or 0.0))
                    tasks.create_task(sending.converse(conversation))
            case _:
                assert_never(pace)


class _Sending:
    """Sends the turns of conversations, each when what it builds on is answered, and keeps what became of them."""

    def __init__(
        self,
        client: Client,
        speaker: Speaker,
        is_chat: bool,
        limits: Limits,
        on_sent: OnSent,
        gate: Gate,
    ) -> None:
        self._client = client
        self._speaker = speaker
        self._is_chat = is_chat
        self._limits = limits
        self._on_sent = on_sent
        self.gate = gate
        self.sent: list[Sent] = []

    async def converse(self, conversation: Conversation) -> None:
        """Send all of a conversation."""
        context: Context = (Said(conversation.prefix),) if conversation.prefix else ()
        await self._branches(conversation.label, context, conversation.turns, conversation.final)

    async def _branches(self, label: str, context: Context, turns: Sequence[Turn], final: Turn | None) -> bool:
        """Send turns together, then the final one with what all of them said; False when one was not answered."""
        if len(turns) == 1:
            said = [await self._turn(label, context, turns[0])]
        else:
            said = await asyncio.gather(*(self._turn(label, context, turn) for turn in turns))
        answered = [each for each in said if each is not None]
        if final is None:
            return len(answered) == len(turns)
        if len(answered) < len(turns):
            self._not_sent(label, final)
            return False
        joined = (*context, *(part for each in answered for part in each))
        return await self._turn(label, joined, final) is not None

    async def _turn(self, label: str, context: Context, turn: Turn) -> Context | None:
        """Send a turn and what is under it; gives what it said and was answered, None when it was not."""
        if turn.wait_s:
            await asyncio.sleep(max(0.0, min(turn.wait_s, self._limits.deadline_s - time.monotonic())))
        said = Said(turn.text)
        async with self.gate.passed():
            result = await self._ask(label, (*context, said), turn)
        if isinstance(result, Failure):
            for under in (*turn.then, *([] if turn.final is None else [turn.final])):
                self._not_sent(label, under)
            return None
        replied = (said, Said(result.text, result))
        await self._branches(label, (*context, *replied), turn.then, turn.final)
        return replied

    async def _ask(self, label: str, context: Context, turn: Turn) -> Answer | Failure:
        prompt = self._speaker.prompt(context, is_chat=self._is_chat)
        sent_s = time.monotonic()
        result = await self._speaker.ask(
            self._client, context, turn, is_chat=self._is_chat, timeout_s=self._limits.left_s()
        )
        known = self._speaker.known_after(prompt, result) if isinstance(result, Answer) else None
        exchange = Exchange(prompt=comparable(prompt), sent_s=sent_s, known=known, ended_s=time.monotonic())
        is_json = _is_json(result.text) if turn.json_schema is not None and isinstance(result, Answer) else None
        self._note(Sent(label=label, result=result, exchange=exchange, is_json=is_json))
        return result

    def _not_sent(self, label: str, turn: Turn) -> None:
        failure = Failure("turn not sent", "what it builds on was not answered")
        for _ in range(turn.num_requests):
            self._note(Sent(label=label, result=failure, exchange=None))

    def _note(self, sent: Sent) -> None:
        self.sent.append(sent)
        self._on_sent(sent)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
