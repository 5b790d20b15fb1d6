"""`@axil.function`: a plain or an async function over a state, and the ways to run it.

Knows neither how calls are made nor what they are answered by.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

from runtime.engine import Engine
from wire.names import near

from .backend import Backend
from .batch import Batch, Ending, run_all
from .context import as_backend, current_backend
from .errors import WrongUse
from .expressions import Options, checked_defaults
from .promise import Promise
from .report import Report
from .result import Result, whole
from .state import State
from .trace import Trace, traced
from .track import Surroundings

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_CONCURRENCY = 1024
"""Programs of a batch that are under way at the same time, unless it says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    backend: Backend | None = None
    is_streaming: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


class Runnable(Generic[P, R]):
    """A function over a state and its arguments, and the ways to run it."""

    def __init__(self, function: Callable[Concatenate[State, P], Any], settings: _Settings) -> None:
        self.__doc__ = function.__doc__
        self._function = function
        self._settings = settings

    def using(
        self, *, backend: Backend | Engine | None = None, stream: bool | None = None, **defaults: Unpack[Options]
    ) -> Self:
        """Give the same program with its own backend, streaming on or off, or options for calls that have none."""
        settings = self._settings
        return type(self)(
            self._function,
            replace(
                settings,
                backend=settings.backend if backend is None else as_backend(backend),
                is_streaming=settings.is_streaming if stream is None else stream,
                defaults={**settings.defaults, **checked_defaults(**defaults)},
            ),
        )

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Run to the end, in the caller's thread, and wait for all its calls.

        Raises:
            ProgramError: a call failed, and its value was used, or nobody has looked at it.
        """
        around = self._surroundings()
        state = State(around)
        returned: Promise[R] = Promise()
        result = Result(state, around, returned)
        home = around.backend.home
        try:
            if inspect.iscoroutinefunction(self._function):
                returned.set_result(home.wait(home.begin(self._function(state, *args, **kwargs))))
            else:
                returned.set_result(self._function(state, *args, **kwargs))
            result.wait()
        except BaseException:
            home.call_soon(around.stop)
            raise
        return result

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Begin to run in a thread of its own and return at once; see `Result.stream` and `Result.wait`."""
        around = self._surroundings()
        state = State(around)
        if inspect.iscoroutinefunction(self._function):
            return Result(state, around, around.backend.home.begin(self._function(state, *args, **kwargs)))
        returned: Promise[R] = Promise()

        def body() -> None:
            try:
                returned.set_result(self._function(state, *args, **kwargs))
            except BaseException as error:
                returned.set_exception(error)

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(body,), name=f"axil-{self._name}", daemon=True).start()
        return Result(state, around, returned)

    async def arun(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """As `run`, from async code. A plain function runs on the backend's loop: see `axil.blocking`."""
        around = self._surroundings()
        result: Result[R] = Result(State(around), around, Promise())
        await asyncio.wrap_future(around.backend.home.start(self._on_loop(result, args, kwargs)))
        result.raise_unseen()
        return result

    def run_batch(
        self,
        items: Sequence[Mapping[str, Any]],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        progress: bool = False,
    ) -> Batch[R]:
        """Run once for each item (the function's arguments by name), many at a time; results are in their order.

        An error in one ends that one only: it is in its result, and is raised where the result's values are used.
        Calls that are ready at the same time go out so that those with a common beginning follow each other. Plain
        functions share one thread: what blocks in them belongs into `axil.blocking`.
        """
        batch: Batch[R] = Batch([self._result() for _ in items])
        for _ in self._finished(batch, items, concurrency, is_shown=progress):
            pass
        return batch

    def iter_batch(
        self,
        items: Sequence[Mapping[str, Any]],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        progress: bool = False,
    ) -> Ending[R]:
        """As `run_batch`, giving each item's number and result as it ends; leaving the iteration stops the rest.

        Its `report` tells at any time what has been spent.
        """
        batch: Batch[R] = Batch([self._result() for _ in items])
        return Ending(batch, self._finished(batch, items, concurrency, is_shown=progress))

    def trace(self, **arguments: Any) -> Trace:  # noqa: ANN401 - the function's own arguments, any of them
        """Run without a model and tell which calls are made, and with which prompts.

        Arguments that are left out, and answers, are stand-ins. A program that can't go on with a stand-in is traced up
        to there.
        """
        return traced(self._function, self._name, arguments, self._settings.defaults)

    def explain(self, **arguments: Any) -> str:  # noqa: ANN401 - as in `trace`
        """Describe the calls that the program makes, on what each depends, and which text they share."""
        return str(self.trace(**arguments))

    def __repr__(self) -> str:
        _, *names = inspect.signature(self._function).parameters
        return f"<{type(self).__name__} {self._name}({', '.join(names)})>"

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", "program")

    def _surroundings(self) -> Surroundings:
        settings = self._settings
        return Surroundings(
            backend=settings.backend or current_backend(),
            report=Report(),
            is_streaming=settings.is_streaming,
            defaults=settings.defaults,
        )

    def _result(self) -> Result[R]:
        around = self._surroundings()
        return Result(State(around), around, Promise())

    def _finished(
        self, batch: Batch[R], items: Sequence[Mapping[str, Any]], concurrency: int, *, is_shown: bool
    ) -> Generator[tuple[int, Result[R]], None, None]:
        if concurrency < 1:
            raise WrongUse(f"concurrency must be at least 1, got {concurrency}.", field="concurrency")
        signature = inspect.signature(self._function)
        for i, item in enumerate(items):
            _check_item(item, f"items[{i}]", self._name, signature)
        work = [functools.partial(self._on_loop, batch[i], (), dict(item)) for i, item in enumerate(items)]
        home = (self._settings.backend or current_backend()).home
        try:
            for i in run_all(home, work, concurrency, lambda i: batch[i].has_failed, is_shown=is_shown):
                yield i, batch[i]
        finally:
            batch.end()

    def _on_loop(self, result: Result[R], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Coroutine[Any, Any, None]:
        """Run on the backend's loop up to the end of all calls; errors stay in the result."""
        return whole(result, functools.partial(self._function, result.state, *args, **kwargs))


def _check_item(item: object, where: str, name: str, signature: inspect.Signature) -> None:
    """Check that an item of a batch holds the arguments of the function `name`.

    Raises:
        WrongUse: it's no mapping, or an argument is unknown or missing.
    """
    _, *parameters = signature.parameters.values()
    names = [parameter.name for parameter in parameters]
    if not isinstance(item, Mapping):
        form = ", ".join(f'"{each}": …' for each in names)
        raise WrongUse(
            f"items must be dicts of arguments, {{{form}}} for {name}; {where} is a {type(item).__name__}.",
            field="items",
        )
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    for given in item:
        if given not in names and not takes_any:
            meant = near(str(given), names) or f"; it has {', '.join(names) or 'none'}"
            raise WrongUse(f"{where} doesn't suit {name}, which has no argument {given!r}{meant}", field="items")
    try:
        signature.bind(None, **item)
    except TypeError as error:
        raise WrongUse(f"{where} doesn't suit {name}: {error}.", field="items") from None


class Program(Runnable[P, R]):
    """A plain function made into a program by `@axil.function`; it waits where it reads a variable."""

    def __call__(self, state: State, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Go on in `state`, as a part of the program that it belongs to."""
        return cast(R, self._function(state, *args, **kwargs))


class AsyncProgram(Runnable[P, R]):
    """An async function made into a program by `@axil.function`; it awaits `state.get(name)`."""

    def __call__(self, state: State, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Go on in `state`, as a part of the async program that it belongs to."""
        return cast(Awaitable[R], self._function(state, *args, **kwargs))


@overload
def function(  # type: ignore[overload-overlap]  # a plain function that returns a coroutine is taken for async
    body: Callable[Concatenate[State, P], Coroutine[Any, Any, R]],
) -> AsyncProgram[P, R]: ...


@overload
def function(body: Callable[Concatenate[State, P], R]) -> Program[P, R]: ...


def function(body: Callable[Concatenate[State, P], Any]) -> Runnable[P, Any]:
    """Make a program of a function whose first parameter is the state."""
    parameters = list(inspect.signature(body).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise WrongUse(f"{body!r} needs a first parameter for the state.")
    return (AsyncProgram if inspect.iscoroutinefunction(body) else Program)(body, _Settings())
