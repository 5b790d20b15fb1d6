"""Many runs of a program at a time, and their results together."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import queue
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from tqdm import tqdm

from .errors import WrongUse
from .home import Home
from .report import Report
from .result import Result

R = TypeVar("R")


class Batch(Sequence[Result[R]], Generic[R]):
    """The results of a batch, in the order of its items."""

    def __init__(self, results: list[Result[R]]) -> None:
        self._results = results
        self._clock = Report()

    def __repr__(self) -> str:
        num_failed = sum(result.has_failed for result in self._results)
        return f"<Batch of {len(self._results):,} results, {num_failed:,} failed>"

    def __len__(self) -> int:
        return len(self._results)

    @overload
    def __getitem__(self, key: int) -> Result[R]: ...

    @overload
    def __getitem__(self, key: slice) -> list[Result[R]]: ...

    def __getitem__(self, key: int | slice) -> Result[R] | list[Result[R]]:
        return self._results[key]

    @property
    def report(self) -> Report:
        """What all runs have cost together; its seconds are those of the whole batch."""
        return Report.of([result.report for result in self._results], self._clock)

    @property
    def errors(self) -> list[tuple[int, Exception]]:
        """The runs that failed, by number."""
        return [(i, error) for i, result in enumerate(self._results) if (error := result.error) is not None]

    def end(self) -> None:
        """Stop the clock."""
        self._clock.end()


class Ending(Iterator[tuple[int, Result[R]]], Generic[R]):
    """The runs of a batch as they end, each with its number; `close` stops those that are left."""

    def __init__(self, batch: Batch[R], finished: Generator[tuple[int, Result[R]], None, None]) -> None:
        self._batch = batch
        self._finished = finished

    def __next__(self) -> tuple[int, Result[R]]:
        return next(self._finished)

    @property
    def report(self) -> Report:
        """What all runs have cost together, so far."""
        return self._batch.report

    def close(self) -> None:
        """Stop the runs that have not ended."""
        self._finished.close()


def run_all(
    home: Home,
    work: Sequence[Callable[[], Coroutine[Any, Any, None]]],
    concurrency: int,
    has_failed: Callable[[int], bool],
    *,
    is_shown: bool,
) -> Iterator[int]:
    """Run coroutines on the loop, `concurrency` at a time, and give each one's number as it ends; they raise nothing.

    A bar, if shown, counts those that `has_failed`. Leaving the iteration cancels the rest.
    """
    ended: queue.SimpleQueue[list[int] | BaseException] = queue.SimpleQueue()
    together: list[int] = []
    context = contextvars.copy_context()

    def tell() -> None:
        ended.put(together[:])
        together.clear()

    async def one(i: int, room: asyncio.Semaphore) -> None:
        try:
            await work[i]()
        finally:
            room.release()
            if not together:  # one waking of the caller's thread for all that end in this turn of the loop
                asyncio.get_running_loop().call_soon(tell)
            together.append(i)

    async def all_of_them() -> None:
        room = asyncio.Semaphore(concurrency)
        async with asyncio.TaskGroup() as group:
            for i in range(len(work)):
                await room.acquire()
                group.create_task(one(i, room), context=context.copy())

    def tell_failure(running: concurrent.futures.Future[None]) -> None:
        if running.cancelled() or running.exception() is not None:
            ended.put(WrongUse("the backend was closed while a batch was running."))

    running = home.start(all_of_them())
    running.add_done_callback(tell_failure)
    try:
        with tqdm(total=len(work), desc="programs", disable=not is_shown) as bar:
            num_left, num_failed = len(work), 0
            while num_left:
                numbers = ended.get()
                if isinstance(numbers, BaseException):
                    raise numbers
                num_left -= len(numbers)
                for i in numbers:
                    if is_shown and has_failed(i):
                        num_failed += 1
                        bar.set_postfix_str(f"{num_failed:,} failed", refresh=False)
                    bar.update()
                    yield i
    finally:
        running.cancel()
