"""How fast does a server decode? Answers asked for over HTTP, and the time in which all of a batch's rows decode.

Knows no server and no table of figures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from bench.client import Client
from bench.command import CannotMeasure
from bench.summary import Answer, Failure

REQUEST_S = 600.0


async def asked(
    client: Client, prompt: tuple[int, ...], *, max_tokens: int, arrivals: list[float] | None = None
) -> Answer:
    """An answer; when its pieces came is added to `arrivals`.

    Raises:
        CannotMeasure: the request failed.
    """
    times = [] if arrivals is None else arrivals
    answer = await client.complete(
        prompt, max_tokens=max_tokens, timeout_s=REQUEST_S, on_text=lambda: times.append(time.perf_counter())
    )
    if isinstance(answer, Failure):
        raise CannotMeasure(f"a request failed: {answer.kind}: {answer.detail}")
    return answer


def ttft_s(answer: Answer) -> float:
    """The time to an answer's first token.

    Raises:
        CannotMeasure: there was none.
    """
    if answer.ttft_s is None:
        raise CannotMeasure("a prefill gave no text")
    return answer.ttft_s


async def batch_rate(client: Client, prompts: Sequence[tuple[int, ...]], *, num_tokens: int) -> float:
    """Tokens a second, all rows together, while answers of `num_tokens` to all prompts are decoded.

    Raises:
        CannotMeasure: a request failed, or its answer came in one piece, or the rows never all decode at once.
    """
    arrivals: list[list[float]] = [[] for _ in prompts]
    # The same prompts once more, found cached: rows begin together then.
    for prompt in prompts:
        await asked(client, prompt, max_tokens=1)
    answers = await asyncio.gather(
        *(
            asked(client, prompt, max_tokens=num_tokens, arrivals=times)
            for prompt, times in zip(prompts, arrivals, strict=True)
        )
    )
    if any(len(times) < 2 for times in arrivals):
        raise CannotMeasure("an answer came in one piece; let it have more tokens")
    return decode_rate(arrivals, [answer.completion_tokens for answer in answers])


def decode_rate(arrivals: Sequence[Sequence[float]], num_tokens: Sequence[int]) -> float:
    """Tokens a second between the last row's first piece and the first row's last; a piece may hold several tokens.

    Raises:
        CannotMeasure: the rows never all decode at once.
    """
    begin, end = max(times[0] for times in arrivals), min(times[-1] for times in arrivals)
    if end <= begin:
        raise CannotMeasure("one row ended before another began; let answers have more tokens")
    tokens = sum(
        count * sum(begin < at <= end for at in times) / len(times)
        for times, count in zip(arrivals, num_tokens, strict=True)
    )
    return tokens / (end - begin)
