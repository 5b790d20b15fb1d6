"""The event loop, in a thread of its own, on which programs' calls are made, and how plain functions wait for it.

A plain function that runs on the loop itself runs in a *fiber* (a greenlet): where it waits for a value, the loop goes
on with others. So thousands of them are under way in one thread. Knows no programs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import greenlet
import uvloop

from .errors import WrongUse
from .promise import Promise

T = TypeVar("T")
A = ParamSpec("A")


class Home:
    """An event loop that is started when it is first needed and stopped by `close`, or when nobody holds it.

    `at_end` is run on it last of all.
    """

    def __init__(self, at_end: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        self._at_end = at_end
        self._lock = threading.Lock()
        self._running: _Running | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; started now if it wasn't."""
        running = self._running
        if running is None:
            with self._lock:
                running = self._running
                if running is None:
                    running = self._running = _Running(self._at_end)
                    weakref.finalize(self, running.stop)
        return running.loop

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on the loop's thread."""
        running = self._running
        return running is not None and running.thread.ident == threading.get_ident()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Promise[T]:
        """Run a coroutine on the loop, from any thread, and give a promise of what it returns."""
        promise: Promise[T] = Promise()

        async def body() -> None:
            try:
                value = await coroutine
            except BaseException as error:
                promise.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            else:
                promise.set_result(value)

        self.start(body())
        return promise

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        """Call something on the loop, from any thread; calls keep their order."""
        if self.is_here:
            self.loop.call_soon(callback, *args)
        else:
            self.loop.call_soon_threadsafe(callback, *args)

    def wait(self, promise: Promise[T]) -> T:
        """Give a promise's value once it is there; a fiber lets the loop go on meanwhile.

        Raises:
            WrongUse: the caller is a coroutine on the loop, which must not block; it awaits instead.
        """
        if not promise.is_done and self.is_here:
            fiber = greenlet.getcurrent()
            if not isinstance(fiber, _Fiber):
                raise WrongUse("an async program must not wait for a value in place: use `await state.get(name)`.")
            promise.add_done_callback(lambda: self.call_soon(fiber.resume))
            fiber.pause()
        return promise.wait()

    def run_fiber(self, function: Callable[[], T]) -> Promise[T]:
        """Run a plain function on the loop, from any thread, as a fiber with the caller's context variables."""
        result: Promise[T] = Promise()
        context = contextvars.copy_context()

        def body() -> None:
            try:
                value = function()
            except BaseException as error:
                result.set_exception(error)
            else:
                result.set_result(value)

        def begin() -> None:
            fiber = _Fiber(body, self)
            fiber.gr_context = context
            fiber.resume()

        self.call_soon(begin)
        return result

    def close(self) -> None:
        """Stop the loop; what is open on it is cancelled. A later use starts another."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.stop()


class _Fiber(greenlet.greenlet):
    """A function's stay on the loop; between `resume` and the next `pause` the loop stands still."""

    def __init__(self, body: Callable[[], None], home: Home) -> None:
        super().__init__(body)
        self.home = home

    def resume(self) -> None:
        self.parent = greenlet.getcurrent()
        self.switch()

    def pause(self) -> None:
        assert self.parent is not None
        self.parent.switch()


class _Running:
    def __init__(self, at_end: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        self._at_end = at_end
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="axil-programs", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            if self._at_end is not None:
                self.loop.run_until_complete(self._at_end())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def stop(self) -> None:
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        if self.thread.ident != threading.get_ident():
            self.thread.join()


def blocking(function: Callable[A, T], /, *args: A.args, **kwargs: A.kwargs) -> T:
    """Run something that blocks (a tool, a file, another service) inside a program.

    In a batch, where programs share a thread, it runs in a thread of its own and the others go on; else in place.
    """
    fiber = greenlet.getcurrent()
    if not isinstance(fiber, _Fiber):
        return function(*args, **kwargs)
    call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
    done: Promise[T] = Promise()

    def run() -> None:
        try:
            value: T = call()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(value)

    asyncio.get_running_loop().run_in_executor(None, run)
    return fiber.home.wait(done)
