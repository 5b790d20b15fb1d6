"""How values are read: by waiting or awaiting, whole or piece by piece. An error that is raised here has been seen."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

from .errors import ProgramError
from .home import Home
from .promise import Promise
from .slot import Slot

T = TypeVar("T")


class Value(Generic[T]):
    """A call's value, with its type; `get` waits for it, and so does `await`."""

    __slots__ = ("_home", "_slot")

    def __init__(self, slot: Slot, home: Home) -> None:
        self._slot = slot
        self._home = home

    def get(self) -> T:
        """Wait for the value.

        Raises:
            ProgramError: the call failed.
        """
        value: T = seen(self._home.wait, self._slot.result)[0]
        return value

    def __await__(self) -> Generator[Any, None, T]:
        return self._aget().__await__()

    async def _aget(self) -> T:
        value: T = (await arrived(self._slot.result))[0]
        return value


def seen(wait: Callable[[Promise[T]], T], promise: Promise[T]) -> T:
    """A promise's value; its error is marked as raised where a value is used, and bears that place's trace only."""
    try:
        return wait(promise)
    except ProgramError as error:
        error.is_seen = True
        raise ProgramError(error.message) from error.__cause__


async def arrived(promise: Promise[T]) -> T:
    """As `seen`, for coroutines."""
    try:
        return await promise.arrived()
    except ProgramError as error:
        error.is_seen = True
        raise ProgramError(error.message) from error.__cause__


def or_whole(slot: Slot, pieces: Iterator[str]) -> Iterator[str]:
    """The pieces, or the whole value where there were none; then the error, if there is one."""
    num_pieces = 0
    for piece in pieces:
        num_pieces += 1
        yield piece
    value = seen(Promise.result, slot.result)[0]
    if not num_pieces:
        yield first_text(value)


def first_text(value: object) -> str:
    """A value as text; of several answers the first."""
    return str(value[0]) if isinstance(value, list) else str(value)
