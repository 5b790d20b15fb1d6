"""`axil replay`: sends recorded requests to a server, and shows what it found cached beside what was found then."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from wire.errors import counted
from wire.recording import RecordedRequest, read_recording

from .recorded_prompts import RecordedPrompts, random_tokens
from .remote import ServerFailed, base_url_of, get_json, message_of, post_events, session_with

_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When requests are sent: at their recorded times, `speed` times as fast, or with `closed` so many open always."""

    speed: float = 1.0
    closed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of one request; `error` says why it has no answer."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_ms: float | None = None
    error: str | None = None


def replay(path: Path, url: str, *, api_key: str | None, pace: Pace, num_requests: int | None) -> int:
    """Send the requests in a file and print the comparison; returns the exit status.

    Raises:
        ServerFailed: the server can't be reached.
        ValueError: the file can't be read or holds nothing, or `url` is none.
    """
    rows = sorted(read_recording(path, num_requests), key=lambda row: row.timestamp)
    if not rows:
        raise ValueError(f"{path} holds no requests")
    base_url = base_url_of(url)
    fits, results = asyncio.run(_run(base_url, api_key, rows, pace))
    if left_out := len(rows) - len(fits):
        print(f"left out, because they don't fit this server's context or pool: {counted(left_out, 'request')}")
    print("\n".join(lines(fits, results)))
    return 0 if any(result.error is None for result in results) else 1


def lines(rows: Sequence[RecordedRequest], results: Sequence[Replayed]) -> Iterator[str]:
    """A table of what was found and how long first tokens took, now and then; of those that have an answer.

    >>> row = RecordedRequest(
    ...     timestamp=0, input_length=8, output_length=1, hash_ids=(), cached_tokens=4, ttft_ms=10.0
    ... )
    >>> print("\\n".join(lines([row], [Replayed(prompt_tokens=8, cached_tokens=4, ttft_ms=12.0)])))
                       replayed    recorded
    requests                  1           1
    prompt tokens             8           8
    found cached         50.00%      50.00%
    TTFT p50            12.0 ms     10.0 ms
    TTFT p95            12.0 ms     10.0 ms
    TTFT p99            12.0 ms     10.0 ms
    """
    answered = [(row, result) for row, result in zip(rows, results, strict=True) if result.error is None]
    then = [row for row, _ in answered if row.cached_tokens is not None]
    yield " " * 15 + f"{'replayed':>12}{'recorded':>12}"
    yield _line("requests", str(len(answered)), str(len(rows)))
    now_tokens = sum(result.prompt_tokens for _, result in answered)
    yield _line("prompt tokens", f"{now_tokens:,}", f"{sum(row.input_length for row, _ in answered):,}")
    now_cached = sum(result.cached_tokens for _, result in answered)
    then_cached = sum(row.cached_tokens or 0 for row in then)
    yield _line(
        "found cached", _percent(now_cached, now_tokens), _percent(then_cached, sum(row.input_length for row in then))
    )
    now_ms = [result.ttft_ms for _, result in answered if result.ttft_ms is not None]
    then_ms = [row.ttft_ms for row, _ in answered if row.ttft_ms is not None]
    for percentile in _PERCENTILES:
        yield _line(f"TTFT p{percentile}", _percentile(now_ms, percentile), _percentile(then_ms, percentile))
    errors = [result.error for result in results if result.error is not None]
    if errors:
        yield f"failed: {counted(len(errors), 'request')}; the first: {errors[0]}"


async def _run(
    base_url: str, api_key: str | None, rows: Sequence[RecordedRequest], pace: Pace
) -> tuple[list[RecordedRequest], list[Replayed]]:
    async with session_with(api_key) as session:
        info = await get_json(session, f"{base_url}/server_info")
        try:
            room = min(info["context_length"], info["max_total_num_tokens"])
            vocabulary = info["internal_states"][0]["vocabulary"]
        except (LookupError, TypeError) as error:
            raise ServerFailed(f"{base_url}/server_info tells no context and vocabulary; is it axil?") from error
        fits = [row for row in rows if row.input_length + max(1, row.output_length) <= room]
        return fits, await _Replay(session, base_url, fits, vocabulary).run(pace)


class _Replay:
    """One run over all rows."""

    def __init__(
        self, session: aiohttp.ClientSession, base_url: str, rows: Sequence[RecordedRequest], vocabulary: int
    ) -> None:
        self._session = session
        self._url = f"{base_url}/generate"
        self._rows = rows
        self._prompts = RecordedPrompts(rows, random_tokens(vocabulary))
        self._answered = [asyncio.Event() for _ in rows]

    async def run(self, pace: Pace) -> list[Replayed]:
        """Send each at its time, or when there is room."""
        room = asyncio.Semaphore(pace.closed) if pace.closed is not None else None
        began_s = time.monotonic()
        tasks = []
        for place, row in enumerate(self._rows):
            if room is not None:
                await room.acquire()
            else:
                due_s = (row.timestamp - self._rows[0].timestamp) / 1000 / pace.speed
                await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
            task = asyncio.create_task(self._answer(place))
            if room is not None:
                task.add_done_callback(functools.partial(_release, room))
            tasks.append(task)
        return await asyncio.gather(*tasks)

    async def _answer(self, place: int) -> Replayed:
        """Send one, when the answer that it continues is there."""
        try:
            awaited = self._prompts.needs_answer(place)
            if awaited is not None and awaited < place:
                await self._answered[awaited].wait()
            return await self._send(place)
        except ServerFailed as error:
            self._prompts.tell_answer(place, np.empty(0, np.int32))
            return Replayed(error=str(error))
        finally:
            self._answered[place].set()

    async def _send(self, place: int) -> Replayed:
        row, prompt = self._rows[place], self._prompts.prompt(place)
        body = {
            "input_ids": prompt.tolist(),
            "sampling_params": {"max_new_tokens": max(1, row.output_length), "temperature": 0, "ignore_eos": True},
            "stream": True,
            **({"cache_salt": row.salt} if row.salt else {}),
        }
        began_s = time.monotonic()
        first_s = None
        output_ids: list[int] = []
        meta: dict[str, Any] = {}
        async with aclosing(post_events(self._session, self._url, body)) as events:
            async for event in events:
                if "error" in event:
                    raise ServerFailed(message_of(event["error"]))
                first_s = first_s or time.monotonic()
                meta = dict(event["meta_info"]) if isinstance(event["meta_info"], dict) else {}
                told = event["output_ids"]
                assert isinstance(told, list)
                is_whole = len(told) == meta["completion_tokens"]  # a server may send only what is new
                output_ids = told if is_whole else output_ids + told
        self._prompts.tell_answer(place, np.array(output_ids, np.int32))
        return Replayed(
            prompt_tokens=meta["prompt_tokens"],
            cached_tokens=meta["cached_tokens"],
            ttft_ms=None if first_s is None else 1e3 * (first_s - began_s),
        )


def _release(room: asyncio.Semaphore, _: asyncio.Task[Replayed]) -> None:
    room.release()


def _line(name: str, now: str, then: str) -> str:
    return f"{name:<15}{now:>12}{then:>12}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}%" if whole else "-"


def _percentile(values: Sequence[float], percentile: int) -> str:
    return f"{np.percentile(values, percentile):.1f} ms" if values else "-"
