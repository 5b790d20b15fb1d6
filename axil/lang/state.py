"""What a program works on: a prompt that it adds to, and the variables that its calls give.

Adding never waits; reading a variable does, until its call has been answered. Knows no backend and no event loop but
the one that it waits for.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from .backend import Role
from .errors import ProgramError, WrongUse
from .expressions import (
    DEFAULT_METHOD,
    Expression,
    Gen,
    Method,
    Options,
    Select,
    Text,
    TurnBegin,
    TurnEnd,
    flat,
    gen,
    select,
)
from .promise import Promise
from .slot import Meta, Slot, place_of_caller
from .track import AppendBranches, Call, Inherit, ScopeBegin, ScopeEnd, Snapshot, Surroundings, Track
from .value import Value, arrived, first_text, or_whole, seen

T = TypeVar("T")
D = TypeVar("D", str, int, float, bool)


class State:
    """A prompt under way.

    `state += …` appends text, a call or a turn. `state[name]` waits for a variable. In an async program use `get`,
    `all_text`, `all_messages` and `meta_of`, which are coroutines.
    """

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._home = around.backend.home
        self._track = Track(around)
        self._slots: dict[str, Slot] = {}
        self._awaited: dict[str, list[Promise[None]]] = {}
        self._role: Role | None = None
        self._is_chat = False
        self._is_empty = True

    # --- adding

    def __iadd__(self, expression: Expression | str) -> Self:
        for part in flat(expression):
            self._add(part)
        return self

    @overload
    def gen(
        self, name: str | None = None, max_tokens: int | None = None, *, dtype: type[D], **options: Unpack[Options]
    ) -> Value[D]: ...

    @overload
    def gen(  # type: ignore[overload-overlap]  # as in `expressions.gen`
        self, name: str | None = None, max_tokens: int | None = None, *, n: Literal[1] = 1, **options: Unpack[Options]
    ) -> Value[str]: ...

    @overload
    def gen(
        self, name: str | None = None, max_tokens: int | None = None, *, n: int, **options: Unpack[Options]
    ) -> Value[list[str]]: ...

    @overload
    def gen(
        self, name: str | None = None, *, choices: Sequence[str], choices_method: Method = DEFAULT_METHOD
    ) -> Value[str]: ...

    def gen(self, name: str | None = None, max_tokens: int | None = None, **options: Any) -> Value[Any]:
        """Append a call, as `state += gen(…)` does, and give its value with its type."""
        expression = gen(name, max_tokens, **options)
        return Value(self._call(expression), self._home)

    def select(self, name: str | None, choices: Sequence[str], *, method: Method = DEFAULT_METHOD) -> Value[str]:
        """Append a choice, as `state += select(…)` does, and give its value with its type."""
        return Value(self._call(select(name, choices, method=method)), self._home)

    @contextmanager
    def system(self) -> Iterator[None]:
        """What is added inside the `with` stands in a system turn."""
        with self._turn("system"):
            yield

    @contextmanager
    def user(self) -> Iterator[None]:
        """What is added inside the `with` stands in a user's turn."""
        with self._turn("user"):
            yield

    @contextmanager
    def assistant(self) -> Iterator[None]:
        """What is added inside the `with` stands in an assistant's turn."""
        with self._turn("assistant"):
            yield

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """The text that is added inside the `with` becomes the variable `name`."""
        slot = self._new_slot(name)
        self._track.add(ScopeBegin(slot))
        try:
            yield
        finally:
            self._track.add(ScopeEnd(slot))

    # --- branching

    def fork(self, n: int = 1) -> Branches:
        """Give `n` states that go on from here, at the same time. Doesn't wait."""
        if n < 1:
            raise WrongUse(f"fork needs at least 1 branch, got {n}.", field="n")
        begun = self._track.look()
        return Branches(self, [self._branch(begun) for _ in range(n)], begun)

    @contextmanager
    def copy(self) -> Iterator[State]:
        """Give one state that goes on from here; this one stays as it is."""
        yield self.fork(1)[0]

    # --- reading

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - what the call gives; `gen`'s own value is typed
        return self._waited(self._slot(name).result)[0]

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    async def get(self, name: str) -> Any:  # noqa: ANN401 - as `__getitem__`
        """Give a variable, for async programs."""
        return (await arrived(self._slot(name).result))[0]

    def variables(self) -> tuple[str, ...]:
        """Name all variables, also those whose value is still to come."""
        return tuple(self._slots)

    def meta(self, name: str) -> Meta:
        """Wait for a variable's call and give its tokens, logprobs and time."""
        return _meta(name, self._waited(self._slot(name).result)[1])

    async def meta_of(self, name: str) -> Meta:
        """As `meta`, for async programs."""
        return _meta(name, (await arrived(self._slot(name).result))[1])

    def text(self) -> str:
        """Wait for all calls and give the whole prompt; a chat's turns stand below each other, behind their roles."""
        return self._snapshot().whole_text()

    async def all_text(self) -> str:
        """As `text`, for async programs."""
        return (await arrived(self._track.look())).whole_text()

    def messages(self) -> list[dict[str, str]]:
        """Wait for all calls and give the chat's turns, as role and content; the open turn is the last."""
        return _messages(self._snapshot())

    async def all_messages(self) -> list[dict[str, str]]:
        """As `messages`, for async programs."""
        return _messages(await arrived(self._track.look()))

    def sync(self) -> None:
        """Wait until all calls have been answered.

        Raises:
            ProgramError: of the first that failed.
        """
        self._snapshot()

    def error(self) -> ProgramError | None:
        """Wait until all calls have been answered, and give the error of the first that failed."""
        with suppress(ProgramError):
            self.sync()
        return self._track.failure

    def stream(self, name: str) -> Iterator[str]:
        """Give a variable's text piece by piece, as it grows (whole, unless the program was started to stream).

        Raises:
            ProgramError: the call failed.
        """
        slot = self._slot(name)
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        if self._home.is_here:
            raise WrongUse("a program in a batch can't be streamed from inside; stream from outside of it.")
        self._home.call_soon(slot.read, pieces.put)
        yield from or_whole(slot, iter(pieces.get, None))

    async def astream(self, name: str) -> AsyncIterator[str]:
        """As `stream`, for async code."""
        slot = self._slot(name)
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()

        def put(piece: str | None) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        self._home.call_soon(slot.read, put)
        num_pieces = 0
        while (piece := await pieces.get()) is not None:
            num_pieces += 1
            yield piece
        value = (await arrived(slot.result))[0]
        if not num_pieces:
            yield first_text(value)

    # --- inside

    def _add(self, part: Expression) -> None:
        match part:
            case Text():
                self._check_place(part.text, "text")
                if self._is_chat and self._role is None:
                    return
                self._is_empty = self._is_empty and not part.text
                self._track.add(part)
            case TurnBegin():
                self._begin_turn(part.role)
            case TurnEnd():
                self._end_turn(part.role)
            case Gen() | Select():
                self._call(part)
            case _:
                raise WrongUse(f"{type(part).__name__} can't be added to a state.")

    def _call(self, expression: Gen[Any] | Select) -> Slot:
        self._check_place("…", "a call")
        self._is_empty = False
        slot = self._new_slot(expression.name)
        self._track.add(Call(expression, slot))
        return slot

    def _new_slot(self, name: str | None) -> Slot:
        slot = Slot(name, place_of_caller())
        if name is not None:
            with self._around.lock:
                self._slots[name] = slot
                awaited = self._awaited.pop(name, ())
            for future in awaited:
                future.set_result(None)
        return slot

    def named(self, name: str, returned: Promise[Any]) -> Promise[None]:
        """A promise that is kept as soon as there is a variable `name`, or none will come: the program has returned."""
        found: Promise[None] = Promise()
        with self._around.lock:
            if name not in self._slots:
                self._awaited.setdefault(name, []).append(found)
            else:
                found.set_result(None)
        returned.add_done_callback(lambda: self._give_up(name))
        return found

    def _give_up(self, name: str) -> None:
        with self._around.lock:
            awaited = self._awaited.pop(name, ())
        for future in awaited:
            future.set_result(None)

    def _check_place(self, text: str, what: str) -> None:
        if self._is_chat and self._role is None and text.strip():
            raise WrongUse(f"{what} can't stand between the turns of a chat. Put it into system, user or assistant.")

    @contextmanager
    def _turn(self, role: Role) -> Iterator[None]:
        self._begin_turn(role)
        try:
            yield
        finally:
            self._end_turn(role)

    def _begin_turn(self, role: Role) -> None:
        if self._role is not None:
            raise WrongUse(f"a turn of {role} can't begin inside one of {self._role}. End that one first.")
        if not self._is_chat and not self._is_empty:
            raise WrongUse("a chat can't begin behind plain text. Put the text into a system or user turn.")
        self._role, self._is_chat = role, True
        self._track.add(TurnBegin(role))

    def _end_turn(self, role: Role) -> None:
        if self._role != role:
            raise WrongUse(f"no turn of {role} is open; it can't end.")
        self._role = None
        self._track.add(TurnEnd(role))

    def _branch(self, begun: Promise[Snapshot]) -> State:
        branch = State(self._around)
        branch._slots = dict(self._slots)
        branch._role, branch._is_chat, branch._is_empty = self._role, self._is_chat, self._is_empty
        branch._track.add(Inherit(begun))
        return branch

    def _slot(self, name: str) -> Slot:
        slot = self._slots.get(name)
        if slot is None:
            known = ", ".join(map(repr, self._slots)) or "none yet"
            raise KeyError(f"no variable {name!r}; there are: {known}")
        return slot

    def _waited(self, promise: Promise[T]) -> T:
        return seen(self._home.wait, promise)

    def _snapshot(self) -> Snapshot:
        return self._waited(self._track.look())


class Branches(Sequence[State]):
    """States that a fork gave. Adding to them adds to each; a name gives a list with each one's value."""

    def __init__(self, parent: State, states: list[State], begun: Promise[Snapshot]) -> None:
        self._parent = parent
        self._states = states
        self._begun = begun
        self._old = dict(parent._slots)

    def __len__(self) -> int:
        return len(self._states)

    @overload
    def __getitem__(self, key: int) -> State: ...

    @overload
    def __getitem__(self, key: slice) -> list[State]: ...

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...

    def __getitem__(self, key: int | slice | str) -> State | list[State] | list[Any]:
        if isinstance(key, str):
            return [state[key] for state in self._states]
        return self._states[key]

    def __iadd__(self, expression: Expression | str | Callable[[int], Expression | str]) -> Self:
        """Add to each branch; a function is given the branch's number."""
        for i, state in enumerate(self._states):
            state += expression(i) if callable(expression) else expression
        return self

    def join(self, how: Literal["variables", "text"] = "variables") -> None:
        """Bring what the branches have made back into the state that was forked. Doesn't wait.

        `variables`: each variable that a branch has set becomes one of the state: a list of the branches' values, of
        those that have set it, in their order. `text`: what each branch has appended is appended, in their order.
        """
        parent = self._parent
        if how == "text":
            ends = [state._track.look() for state in self._states]
            parent._track.add(AppendBranches(ends, self._begun))
            return
        names = dict.fromkeys(
            name for state in self._states for name, slot in state._slots.items() if self._old.get(name) is not slot
        )
        for name in names:
            slots = [state._slots[name] for state in self._states if name in state._slots]
            parent._home.start(_gather(slots, parent._new_slot(name)))


async def _gather(slots: Sequence[Slot], into: Slot) -> None:
    try:
        values = [(await slot.result.arrived())[0] for slot in slots]
    except ProgramError as error:
        into.fail(error)
    else:
        into.finish(values, None)


def _meta(name: str, meta: Meta | None) -> Meta:
    if meta is None:
        raise WrongUse(f"{name!r} comes from no single call, so there is nothing to tell of it.")
    return meta


def _messages(seen: Snapshot) -> list[dict[str, str]]:
    turns = [{"role": message.role, "content": message.content} for message in seen.messages]
    return [*turns, {"role": seen.role, "content": seen.text}] if seen.role is not None else turns
