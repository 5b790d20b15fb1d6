"""A program run without a model: which calls it makes, on what each depends, and which text they share.

Arguments and answers are stand-ins (`stand_in.py`): values that print as marks, which are found again in the prompts.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from types import TracebackType
from typing import Any, cast, get_type_hints

from wire.errors import counted

from .backend import Backend, Prompt, Usage
from .errors import ProgramError, WrongUse
from .expressions import Select
from .home import Home
from .report import Report
from .slot import Meta, Place
from .stand_in import MARK, for_argument, for_choice, for_form, marked_call, marked_role, shown
from .state import State
from .track import Call, Surroundings, describe, filled
from .turns import Turns

MAX_CALLS = 500
"""A program that makes more calls with stand-ins is taken to loop for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """One call: `parts` is its prompt, as text, as names of arguments in `{}` and of earlier calls in `[]`.

    `constant_characters` is how much of the prompt's start is the same for all arguments and answers. The prompt begins
    as that of the earlier call `shared_with`: with `shared_characters` of fixed text, and `shared_parts` that aren't.
    """

    number: int
    what: str
    place: Place | None
    parts: tuple[str, ...]
    depends_on: tuple[int, ...]
    constant_characters: int
    shared_characters: int
    shared_parts: tuple[str, ...]
    shared_with: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The calls of a program in the order in which they became ready; `stopped` says why it ended early, if it did.

    `constant_prefix` is the text that every run with the arguments `given` begins its first prompt with.
    """

    name: str
    arguments: tuple[str, ...]
    given: tuple[str, ...]
    calls: tuple[TracedCall, ...]
    constant_prefix: str
    stopped: str | None
    stopped_at: Place | None

    def __str__(self) -> str:
        head = f"{self.name}({', '.join(self.arguments)}): {counted(len(self.calls), 'call')}"
        these = f" with this {' and '.join(self.given)}" if self.given else ""
        lines = [head, f"every run{these} begins with the same {counted(len(self.constant_prefix), 'character')}"]
        for call in self.calls:
            after = f", after {', '.join(map(str, call.depends_on))}" if call.depends_on else ""
            lines.append(f"{call.number:>3}. {call.what}{after}")
            if call.place is not None:
                lines.append(f"     at {call.place}")
            lines.append(f"     prompt: {' + '.join(call.parts) or 'empty'}")
            if call.shared_with is not None:
                shared = " and ".join((counted(call.shared_characters, "character"), *call.shared_parts))
                lines.append(f"     shares {shared} with {call.shared_with}")
        if self.stopped is not None:
            at = "" if self.stopped_at is None else f" at {self.stopped_at}"
            lines.append(f"stopped{at}: {self.stopped}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Nowhere:
    """What a run needs of a backend whose calls never get there."""

    home: Home
    turns: Turns


def traced(function: Callable[..., Any], name: str, arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> Trace:
    """Run `function` with stand-ins for the arguments that are missing in `arguments`, and for all answers."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    given = dict(arguments)
    kinds = _kinds(function)
    for parameter in parameters:
        is_open = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if is_open and parameter.name not in given:
            given[parameter.name] = for_argument(parameter.name, kinds.get(parameter.name))
    seen: list[tuple[Call, Prompt]] = []

    def stand_in(call: Call, prompt: Prompt) -> tuple[object, str, Meta]:
        if len(seen) >= MAX_CALLS:
            raise ProgramError(f"more than {MAX_CALLS} calls")
        seen.append((call, prompt))
        return _answer(call, len(seen), defaults)

    home = Home()
    around = Surroundings(
        backend=cast(Backend, _Nowhere(home, Turns(1))),
        report=Report(),
        is_streaming=False,
        defaults=defaults,
        stand_in=stand_in,
    )
    failure: Exception | None = None
    try:
        failure = _run(function, State(around), given, home)
        for track in tuple(around.tracks):
            home.wait(track.look())
    except ProgramError as error:
        failure = failure or error
    finally:
        home.close()
    return Trace(
        name=name,
        arguments=tuple(parameter.name for parameter in parameters),
        given=tuple(arguments),
        calls=_calls(seen),
        constant_prefix=_constant(_key(seen[0][1])) if seen else "",
        stopped=None if failure is None else _why(failure, [call for call, _ in seen]),
        stopped_at=None if failure is None else _place(failure.__traceback__, function),
    )


def _answer(call: Call, number: int, defaults: Mapping[str, Any]) -> tuple[object, str, Meta]:
    """A call's value, which ordinary code can take for what it is, and the mark that stands for it in prompts."""
    expression, mark = call.expression, marked_call(number)
    if isinstance(expression, Select):
        scores = dict.fromkeys(expression.choices, 0.0)
        meta = Meta.of(Usage(), finish_reason="choice", seconds=0.0, scores=scores)
        return for_choice(expression.choices[0], mark), mark, meta
    meta = Meta.of(Usage(), finish_reason="stop", seconds=0.0)
    value = for_form(filled(expression.wish, defaults), expression.dtype, mark)
    return value if expression.wish.n == 1 else [value] * expression.wish.n, mark, meta


def _why(error: Exception, calls: Sequence[Call]) -> str:
    """Why the program could not go on, and whose stand-in it took for something else."""
    what = shown(str(error))
    if isinstance(error, ProgramError | WrongUse):
        return what
    told = " ".join(str(part) for part in (*error.args, getattr(error, "doc", "")))
    for mark in MARK.finditer(told):
        if number := mark["call"]:
            name = calls[int(number) - 1].expression.name
            whose = f"{name!r}" if name is not None else f"call {number}"
            return (
                f"the program parses {shown(whose)}, whose answer is a stand-in; a json_schema, a simple regex or a"
                f" dtype gives it a form ({type(error).__name__}: {what})"
            )
    return f"{type(error).__name__}: {what}"


def _place(trace: TracebackType | None, function: Callable[..., Any]) -> Place | None:
    """The innermost line of an error's trace that stands in the program's own file."""
    file = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None)
    found = None
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == file:
            found = Place(code, trace.tb_lineno)
        trace = trace.tb_next
    return found


def _run(function: Callable[..., Any], state: State, arguments: Mapping[str, Any], home: Home) -> Exception | None:
    """What kept the function from going on, if anything: it may well not take a stand-in for what it is."""
    try:
        if inspect.iscoroutinefunction(function):
            home.start(function(state, **arguments)).result()
        else:
            function(state, **arguments)
    except Exception as error:
        return error
    return None


def _kinds(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The types of the parameters, where they can be told."""
    try:
        return get_type_hints(function)
    except NameError:  # one that only a type checker sees
        return {}


def _key(prompt: Prompt) -> str:
    """The prompt as one string, in which a turn's role is a mark too."""
    if prompt.role is None:
        return prompt.text
    turns = "".join(f"{marked_role(message.role)}{message.content}" for message in prompt.messages)
    return f"{turns}{marked_role(prompt.role)}{prompt.text}"


def _calls(seen: Sequence[tuple[Call, Prompt]]) -> tuple[TracedCall, ...]:
    calls: list[TracedCall] = []
    # Of all keys so far, the one with the longest common beginning is a neighbour in their order.
    earlier: list[tuple[str, int]] = []
    for number, (call, prompt) in enumerate(seen, start=1):
        key = _key(prompt)
        place = bisect_left(earlier, (key, 0))
        common, shared_with = max(
            ((_common(key, other), each) for other, each in earlier[max(place - 1, 0) : place + 1]), default=(0, None)
        )
        insort(earlier, (key, number))
        marks = [mark for mark in MARK.finditer(key) if mark.start() < common]
        shared_characters = common - sum(min(mark.end(), common) - mark.start() for mark in marks)
        shared_parts = tuple(
            dict.fromkeys(shown(mark[0]) for mark in marks if mark.end() <= common and not mark["role"])
        )
        calls.append(
            TracedCall(
                number=number,
                what=shown(describe(call.expression)),
                place=call.slot.place,
                parts=_parts(key),
                depends_on=tuple(sorted({int(mark["call"]) for mark in MARK.finditer(key) if mark["call"]})),
                constant_characters=len(_constant(key)),
                shared_characters=shared_characters,
                shared_parts=shared_parts,
                shared_with=shared_with if shared_characters or shared_parts else None,
            )
        )
    return tuple(calls)


def _common(first: str, second: str) -> int:
    return len(commonprefix([first, second]))  # noqa: RUF071 - these are no paths


def _constant(key: str) -> str:
    """The text before the first stand-in."""
    end = next((mark.start() for mark in MARK.finditer(key) if not mark["role"]), len(key))
    return MARK.sub("", key[:end])


def _parts(key: str) -> tuple[str, ...]:
    parts = []
    position = 0
    for mark in MARK.finditer(key):
        if mark.start() > position:
            parts.append(counted(mark.start() - position, "character"))
        parts.append(shown(mark[0]))
        position = mark.end()
    if len(key) > position:
        parts.append(counted(len(key) - position, "character"))
    return tuple(parts)
