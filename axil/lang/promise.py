"""A value that is on its way: set once, on any thread; waited for by a thread, a coroutine or a callback.

What `concurrent.futures.Future` does, at a fraction of its time and memory: every call of a program has one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar, cast

T = TypeVar("T")

_lock = threading.Lock()
"""Of all promises: it is held for a few assignments, and one for each would be most of what a promise takes."""


class Promise(Generic[T]):
    """A value or an error to come.

    >>> promise = Promise()
    >>> promise.add_done_callback(lambda: print(promise.result()))
    >>> promise.set_result(7)
    7
    """

    __slots__ = ("_callbacks", "_error", "_trace", "_value", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None
        self._callbacks: tuple[Callable[[], object], ...] = ()

    def set_result(self, value: T) -> None:
        """Set the value."""
        self._value = value
        self._finish()

    def set_exception(self, error: BaseException) -> None:
        """Set the error that `result` raises, each time with the trace that it has now."""
        self._error, self._trace = error, error.__traceback__
        self._finish()

    def result(self) -> T:
        """Give the value that has been set, or raise the error."""
        assert self.is_done, "wait before you look"
        if self._error is not None:
            raise self._error.with_traceback(self._trace)
        return cast(T, self._value)

    def exception(self) -> BaseException | None:
        """Give the error that has been set, if one has."""
        return self._error

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback` once the value is set, on the thread that sets it; at once when it is."""
        with _lock:
            if not self.is_done:
                self._callbacks = (*self._callbacks, callback)
                return
        callback()

    def wait(self) -> T:
        """Block this thread until the value is set, and give it."""
        if not self.is_done:
            woken = threading.Lock()
            woken.acquire()
            self.add_done_callback(woken.release)
            woken.acquire()
        return self.result()

    async def arrived(self) -> T:
        """Give the value once it is set, without blocking the event loop."""
        if not self.is_done:
            loop = asyncio.get_running_loop()
            woken: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not woken.done():
                    woken.set_result(None)

            def call() -> None:
                if asyncio._get_running_loop() is loop:
                    wake()
                else:
                    loop.call_soon_threadsafe(wake)

            self.add_done_callback(call)
            await woken
        return self.result()

    def _finish(self) -> None:
        with _lock:
            assert not self.is_done, "set twice"
            self.is_done = True
            callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            callback()
