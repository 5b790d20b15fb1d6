"""What a run of a program gives: its variables, its return value, its error, and what it cost."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

from .errors import ProgramError
from .promise import Promise
from .report import Report
from .slot import Meta
from .state import State
from .track import STOPPED, Surroundings

R = TypeVar("R")


class Result(Generic[R]):
    """A run, finished or still under way; reading from it waits for what is read."""

    def __init__(self, state: State, around: Surroundings, returned: Promise[R]) -> None:
        self.state = state
        self._around = around
        self._returned = returned

    def __repr__(self) -> str:
        if self._returned.is_done and (failure := self._returned.exception()) is not None:
            what = f"failed with {type(failure).__name__}: {failure}"
        else:
            what = f"value {self._returned.result()!r}" if self._returned.is_done else "under way"
            what += f", failed calls: {len(self._around.failures)}" * bool(self._around.failures)
        return f"<Result: {what}; variables {', '.join(self.state.variables()) or 'none'}>"

    @property
    def has_failed(self) -> bool:
        """Whether the function or a call has failed up to now. Doesn't wait."""
        return bool(self._around.failures) or (self._returned.is_done and self._returned.exception() is not None)

    @property
    def value(self) -> R:
        """What the function returned; an error that it raised is raised."""
        return self._around.backend.home.wait(self._returned)

    @property
    def error(self) -> Exception | None:
        """Wait for the end and give the function's own error, or else that of the first call that failed."""
        with suppress(Exception):
            self.value  # noqa: B018 - waits
        failure = self._returned.exception()
        if isinstance(failure, Exception):
            return failure
        for track in tuple(self._around.tracks):
            with suppress(ProgramError):
                self._around.backend.home.wait(track.look())
        return self._around.failures[0] if self._around.failures else None

    @property
    def report(self) -> Report:
        """What the calls have cost so far."""
        return self._around.report

    def wait(self) -> None:
        """Wait for the end of the function and of all its calls.

        Raises:
            ProgramError: a call failed whose value nobody has looked at.
        """
        self.value  # noqa: B018 - waits, and raises what the function raised
        for track in tuple(self._around.tracks):
            with suppress(ProgramError):
                self._around.backend.home.wait(track.look())
        self._around.report.end()
        self.raise_unseen()

    def raise_unseen(self) -> None:
        """Raise the error of the function, or of a call that failed without anybody looking at its value."""
        if self._returned.is_done:
            self._returned.result()
        for failure in self._around.failures:
            if not failure.is_seen:
                failure.is_seen = True
                raise failure

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - as `State.__getitem__`
        return self.state[name]

    def __contains__(self, name: str) -> bool:
        return name in self.state

    def text(self) -> str:
        """As `State.text`."""
        return self.state.text()

    def messages(self) -> list[dict[str, str]]:
        """As `State.messages`."""
        return self.state.messages()

    def meta(self, name: str) -> Meta:
        """As `State.meta`."""
        return self.state.meta(name)

    def stream(self, name: str) -> Iterator[str]:
        """As `State.stream`, also for a variable that the program has not come to yet.

        Raises:
            KeyError: the program has ended without it.
        """
        self._around.backend.home.wait(self.state.named(name, self._returned))
        return self.state.stream(name)

    async def astream(self, name: str) -> AsyncIterator[str]:
        """As `stream`, for async code."""
        await self.state.named(name, self._returned).arrived()
        async for piece in self.state.astream(name):
            yield piece


async def whole(result: Result[Any], call: Callable[[], Any]) -> None:
    """Run a program's function on the backend's loop and wait for all its calls; errors stay in `result`."""
    around, returned = result._around, result._returned
    try:
        try:
            if inspect.iscoroutinefunction(getattr(call, "func", call)):
                value = await call()
            else:
                value = await around.backend.home.run_fiber(call).arrived()
        except Exception as error:
            returned.set_exception(error)
        else:
            returned.set_result(value)
        for track in tuple(around.tracks):
            if not track.is_idle:
                with suppress(ProgramError):
                    await track.look().arrived()
    except asyncio.CancelledError:
        if not returned.is_done:
            returned.set_exception(ProgramError(STOPPED))
        around.stop()
        raise
    around.report.end()
