"""Sends a workload to a server at a pace, and waits for every answer. Knows no HTTP and draws no conclusions."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from bench.client import Client
from bench.shapes import Conversation, Workload
from bench.summary import Answer, Failure, Run, Sent


@dataclass(frozen=True, slots=True)
class Closed:
    """Closed loop: `concurrency` conversations are open at any time, the next begins when one ends."""

    concurrency: int


@dataclass(frozen=True, slots=True)
class Open:
    """Open loop: conversations begin at random times (Poisson), whether or not the server keeps up."""

    rate_per_s: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long one request may take, and the point in time (`time.monotonic`) at which all sending ends."""

    request_s: float
    deadline_s: float

    def left_s(self) -> float:
        """Seconds that a request starting now may take."""
        return min(self.request_s, self.deadline_s - time.monotonic())


async def run(
    client: Client, workload: Workload, pace: Closed | Open, limits: Limits, on_sent: Callable[[Sent], None]
) -> Run:
    """Send every request of `workload`; `on_sent` hears of each as it ends. Requests past the deadline fail."""
    sent: list[Sent] = []

    async def converse(index: int, conversation: Conversation) -> None:
        messages: list[dict[str, str]] = []
        failed: Failure | None = None
        for turn, (question, max_tokens) in enumerate(
            zip(conversation.questions, conversation.output_tokens, strict=True)
        ):
            messages.append({"role": "user", "content": question})
            if failed is not None:
                result: Answer | Failure = Failure("turn not sent", f"an earlier turn failed: {failed.kind}")
            elif workload.is_chat:
                result = await client.chat(messages, max_tokens=max_tokens, timeout_s=limits.left_s())
            else:
                prompt = conversation.prefix + question
                result = await client.complete(prompt, max_tokens=max_tokens, timeout_s=limits.left_s())
            if isinstance(result, Answer):
                messages.append({"role": "assistant", "content": result.text})
            else:
                failed = failed or result
            sent.append(Sent(conversation=index, turn=turn, group=conversation.group, result=result))
            on_sent(sent[-1])

    waiting = iter(enumerate(workload.conversations))

    async def worker() -> None:
        for index, conversation in waiting:
            await converse(index, conversation)

    started_s = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        match pace:
            case Closed():
                for _ in range(pace.concurrency):
                    tasks.create_task(worker())
            case Open():
                draw = random.Random(pace.seed)
                due_s = started_s
                for index, conversation in waiting:
                    tasks.create_task(converse(index, conversation))
                    due_s += draw.expovariate(pace.rate_per_s)
                    await asyncio.sleep(max(0.0, min(due_s, limits.deadline_s) - time.monotonic()))
            case _:
                assert_never(pace)
    return Run(sent=sent, duration_s=time.monotonic() - started_s)


async def prefix_lengths(client: Client, workload: Workload, limits: Limits) -> dict[int, int] | Failure:
    """Ask the server how many tokens each group's prefix has, by one token of output after it."""
    prefixes = {conversation.group: conversation.prefix for conversation in workload.conversations}
    lengths = {}
    for group, prefix in prefixes.items():
        if not prefix:
            continue
        match await client.complete(prefix, max_tokens=1, timeout_s=limits.left_s()):
            case Answer() as answer:
                lengths[group] = answer.prompt_tokens
            case Failure() as failure:
                return failure
    return lengths
