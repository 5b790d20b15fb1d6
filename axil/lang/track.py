"""A state's prompt as it grows: applies what a program has added, in order, and makes its calls.

Works on the backend's event loop; the program appends operations from wherever it runs. Knows no program.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from msgspec.structs import replace

from wire.errors import AxilError

from .backend import Answer, Backend, Message, Prompt, Role, Wish
from .choices import greedy_choice, length_normalized, unconditional_normalized
from .errors import ProgramError
from .expressions import Gen, Select, Text, TurnBegin, TurnEnd
from .promise import Promise
from .report import Report
from .slot import Meta, Place, Slot

STOPPED = "the program was stopped, or its backend closed."
"""What calls end with that nobody will answer any more."""

_LITERALS = {
    int: re.compile(r"[-+]?\d+"),
    float: re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"),
    bool: re.compile(r"\b(?:true|yes|false|no)\b", re.IGNORECASE),
}


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """What all states of a run have in common.

    `defaults` are options for calls that leave them out; `failures` takes the errors of calls that failed; `stand_in`
    answers in the backend's place: it gives a call's value, the text to go on with, and its meta.
    """

    backend: Backend
    report: Report
    is_streaming: bool
    defaults: Mapping[str, Any]
    stand_in: Callable[[Call, Prompt], tuple[object, str, Meta]] | None = None
    failures: list[ProgramError] = field(default_factory=list)
    tracks: list[Track] = field(default_factory=list)
    working: set[asyncio.Task[None]] = field(default_factory=set)
    is_stopped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def stop(self) -> None:
        """Cancel open calls and make no further ones; whoever waits for a value gets an error. On the loop."""
        self.is_stopped = True
        for task in self.working:
            task.cancel()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state's prompt at one moment."""

    messages: tuple[Message, ...]
    role: Role | None
    text: str

    def whole_text(self) -> str:
        """All of it as text; a chat's turns stand one below the other, each behind its role."""
        if not self.messages and self.role is None:
            return self.text
        turns = [*self.messages, Message(self.role, self.text)] if self.role is not None else self.messages
        return "\n\n".join(f"{turn.role}: {turn.content}" for turn in turns)


@dataclass(frozen=True, slots=True)
class Call:
    """Make a call; its value goes into `slot`."""

    expression: Gen[Any] | Select
    slot: Slot


@dataclass(frozen=True, slots=True)
class Look:
    """Tell what the prompt is now."""

    seen: Promise[Snapshot]


@dataclass(frozen=True, slots=True)
class Inherit:
    """Begin with another state's prompt."""

    seen: Promise[Snapshot]


@dataclass(frozen=True, slots=True)
class AppendBranches:
    """Append what each branch has added to its first prompt."""

    ends: Sequence[Promise[Snapshot]]
    begun: Promise[Snapshot]


@dataclass(frozen=True, slots=True)
class ScopeBegin:
    """The text from here on is the variable of the `ScopeEnd` with the same slot."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class ScopeEnd:
    """A variable's text ends here."""

    slot: Slot


Immediate = Text | TurnBegin | TurnEnd | Look | ScopeBegin | ScopeEnd
Operation = Immediate | Call | Inherit | AppendBranches


class Track:
    """Operations to do and the prompt that those done have made."""

    __slots__ = ("_around", "_is_working", "_messages", "_operations", "_pieces", "_role", "_scopes", "failure")

    def __init__(self, around: Surroundings) -> None:
        self.failure: ProgramError | None = None
        around.tracks.append(self)
        self._around = around
        self._operations: deque[Operation] = deque()
        self._is_working = False
        self._messages: tuple[Message, ...] = ()
        self._role: Role | None = None
        self._pieces: list[str] = []
        self._scopes: dict[Slot, tuple[int, int]] = {}

    def add(self, operation: Operation) -> None:
        """Take an operation, from any thread; text and turns lie until something needs them."""
        self._operations.append(operation)
        if not isinstance(operation, (Text, TurnBegin, TurnEnd)):
            self._around.backend.home.call_soon(self._wake)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to be done. On the loop."""
        return not self._is_working and not self._operations

    def look(self) -> Promise[Snapshot]:
        """Tell what the prompt is once everything before has been done."""
        seen: Promise[Snapshot] = Promise()
        self.add(Look(seen))
        return seen

    def _wake(self) -> None:
        if self._around.is_stopped:
            self._drop_operations()
        elif not self._is_working:
            self._is_working = True
            task = asyncio.get_running_loop().create_task(self._work())
            self._around.working.add(task)
            task.add_done_callback(self._around.working.discard)

    async def _work(self) -> None:
        try:
            while self._operations:
                operation = self._operations.popleft()
                if isinstance(operation, Call):
                    await self._call(operation)
                elif isinstance(operation, Inherit):
                    await self._inherit(operation.seen)
                elif isinstance(operation, AppendBranches):
                    await self._append(operation)
                else:
                    self._apply(operation)
        finally:
            self._is_working = False
            self._drop_operations()  # there are some only when the work was cancelled

    def _drop_operations(self) -> None:
        while self._operations:
            _cancel(self._operations.popleft())

    def _apply(self, operation: Immediate) -> None:
        """Do what needs no waiting."""
        match operation:
            case Text():
                self._pieces.append(operation.text)
            case TurnBegin():
                self._role, self._pieces = operation.role, []
            case TurnEnd():
                self._messages = (*self._messages, Message(operation.role, self._text()))
                self._role, self._pieces = None, []
            case Look():
                self._tell(operation.seen)
            case ScopeBegin():
                self._scopes[operation.slot] = (len(self._messages), len(self._text()))
            case ScopeEnd():
                self._end_scope(operation.slot)
            case _:
                assert_never(operation)

    def _text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def _tell(self, seen: Promise[Snapshot]) -> None:
        if self.failure is not None:
            seen.set_exception(self.failure)
        else:
            seen.set_result(Snapshot(self._messages, self._role, self._text()))

    async def _inherit(self, seen: Promise[Snapshot]) -> None:
        try:
            start = await seen.arrived()
        except ProgramError as error:
            self.failure = error
            return
        self._messages, self._role, self._pieces = start.messages, start.role, [start.text]

    async def _append(self, branches: AppendBranches) -> None:
        try:
            begun = await branches.begun.arrived()
            for promise in branches.ends:
                end = await promise.arrived()
                if end.messages != begun.messages or end.role != begun.role:
                    raise ProgramError("join by text needs branches that stay in the turn in which they were forked.")
                self._pieces.append(end.text[len(begun.text) :])
        except ProgramError as error:
            self.failure = self.failure or error

    def _end_scope(self, slot: Slot) -> None:
        num_messages, begin = self._scopes.pop(slot)
        if self.failure is not None:
            slot.fail(self.failure)
        elif num_messages != len(self._messages):
            slot.fail(ProgramError(f"the scope {slot.name!r} must end in the turn in which it began."))
        else:
            slot.finish(self._text()[begin:], None)

    async def _call(self, call: Call) -> None:
        slot = call.slot
        if self.failure is not None:
            slot.fail(self.failure)
            return
        began_s = time.monotonic()
        backend = self._around.backend
        prompt = Prompt(text=self._text(), role=self._role, messages=self._messages)
        try:
            async with backend.turns.turn(prompt.key):
                match call.expression:
                    case _ if self._around.stand_in is not None:
                        value, text, meta = self._around.stand_in(call, prompt)
                    case Gen():
                        value, text, meta = await self._generate(call.expression, slot, prompt, began_s)
                    case Select():
                        value, text, meta = await self._select(call.expression, prompt, began_s)
                    case _:
                        assert_never(call.expression)
        except asyncio.CancelledError:
            slot.fail(_failure(call, AxilError(STOPPED)))
            raise
        except Exception as error:
            self.failure = _failure(call, error)
            self._around.report.add_failure()
            self._around.failures.append(self.failure)
            slot.fail(self.failure)
            return
        self._pieces.append(text)
        slot.finish(value, meta)

    async def _generate(
        self, expression: Gen[Any], slot: Slot, prompt: Prompt, began_s: float
    ) -> tuple[object, str, Meta]:
        put = slot.put if self._around.is_streaming else None
        wish = filled(expression.wish, self._around.defaults)
        answer = await self._around.backend.generate(prompt, wish, put)
        self._around.report.add(answer.usage)
        meta = Meta.of(
            answer.usage,
            finish_reason=answer.finish_reasons[0],
            seconds=time.monotonic() - began_s,
            logprobs=answer.logprobs if wish.num_top_logprobs is not None else (),
        )
        value, text = _value(expression, answer)
        return value, text, meta

    async def _select(self, expression: Select, prompt: Prompt, began_s: float) -> tuple[object, str, Meta]:
        backend, choices = self._around.backend, expression.choices
        found = await backend.score(prompt, choices)
        self._around.report.add(found.usage)
        logprobs = [scored.logprobs for scored in found.choices]
        scores = length_normalized(logprobs)
        if expression.method == "unconditional-normalized":
            alone = await backend.score_alone([scored.token_ids for scored in found.choices])
            self._around.report.add(alone.usage)
            scores = unconditional_normalized(logprobs, [scored.logprobs for scored in alone.choices])
        best = greedy_choice(logprobs) if expression.method == "greedy-token" else scores.index(max(scores))
        meta = Meta.of(
            found.usage,
            finish_reason="choice",
            seconds=time.monotonic() - began_s,
            scores=dict(zip(choices, scores, strict=True)),
        )
        return choices[best], choices[best], meta


def _value(expression: Gen[Any], answer: Answer) -> tuple[object, str]:
    """The variable's value, and the text that the state goes on with."""
    text = answer.texts[0]
    if expression.wish.n > 1:
        return list(answer.texts), text
    if expression.dtype in (None, str):
        return text, text
    assert expression.dtype is not None
    found = _LITERALS[expression.dtype].search(text)
    if found is None:
        raise ProgramError(f"the answer {text!r} holds no {expression.dtype.__name__}.")
    literal = found.group()
    value = literal.lower() in ("true", "yes") if expression.dtype is bool else expression.dtype(literal)
    return value, text[: found.end()]


def _failure(call: Call, error: Exception) -> ProgramError:
    failure = ProgramError(f"{describe(call.expression)}{_at(call.slot.place)} failed: {error}")
    failure.__cause__ = error
    return failure


def describe(expression: Gen[Any] | Select) -> str:
    """A call as it stands in messages."""
    kind = "gen" if isinstance(expression, Gen) else "select"
    return f"{kind}({expression.name!r})" if expression.name is not None else f"{kind}()"


def _at(place: Place | None) -> str:
    return "" if place is None else f" at {place}"


def _cancel(operation: Operation) -> None:
    stopped = ProgramError(STOPPED)
    match operation:
        case Call() | ScopeEnd():
            operation.slot.fail(stopped)
        case Look():
            operation.seen.set_exception(stopped)
        case _:
            pass


def filled(wish: Wish, defaults: Mapping[str, Any]) -> Wish:
    """A call's options, with the program's where it has none."""
    missing = {name: value for name, value in defaults.items() if getattr(wish, name) in (None, ())}
    return replace(wish, **missing) if missing else wish
