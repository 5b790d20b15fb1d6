"""A program run without a model: which calls it makes, on what each depends, and which text they share.

Arguments and answers are stand-ins: values that print as marks, which are found again in the prompts.
"""

from __future__ import annotations

import inspect
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, NoReturn, Self, get_args, get_origin, get_type_hints

from .backend import Answer, Prompt, Scored, Scores, Usage, Wish
from .errors import ProgramError
from .home import Home
from .report import Report
from .slot import Place
from .state import State
from .track import Call, Surroundings, describe
from .turns import Turns

MAX_CALLS = 500
"""A program that makes more calls with stand-ins is taken to loop for ever."""

# Characters of a private use area, which no prompt holds.
# An answer's mark holds a literal of each type, behind which a `dtype` may have cut it off.
_MARK = re.compile(r"\ue000(?:a(\w+(?:\[\d\])*)|g(\d+))(?: yes)?\ue001?")
_SEVERAL = (list, tuple, Sequence, Collection, Iterable)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """One call: `parts` is its prompt, as text, as names of arguments in `{}` and of earlier calls in `[]`.

    `constant_characters` is how much of the prompt's start is the same for all arguments and answers. The first
    `shared_characters` are also the start of the prompt of the earlier call numbered `shared_with`.
    """

    number: int
    what: str
    place: Place | None
    parts: tuple[str, ...]
    depends_on: tuple[int, ...]
    constant_characters: int
    shared_characters: int
    shared_with: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The calls of a program in the order in which they became ready; `stopped` says why it ended early, if it did.

    `constant_prefix` is the text that every run begins its first prompt with.
    """

    name: str
    arguments: tuple[str, ...]
    calls: tuple[TracedCall, ...]
    constant_prefix: str
    stopped: str | None

    def __str__(self) -> str:
        head = f"{self.name}({', '.join(self.arguments)}): {len(self.calls)} calls"
        lines = [head, f"every run begins with the same {len(self.constant_prefix):,} characters"]
        for call in self.calls:
            after = f", after {', '.join(map(str, call.depends_on))}" if call.depends_on else ""
            lines.append(f"{call.number:>3}. {call.what}{after}")
            if call.place is not None:
                lines.append(f"     at {call.place}")
            lines.append(f"     prompt: {' + '.join(call.parts) or 'empty'}")
            if call.shared_with is not None:
                lines.append(f"     shares {call.shared_characters:,} characters with {call.shared_with}")
        if self.stopped is not None:
            lines.append(f"stopped: {self.stopped}")
        return "\n".join(lines)


def traced(function: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> Trace:
    """Run `function` with stand-ins for the arguments that are missing in `arguments`."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    given = dict(arguments)
    kinds = _kinds(function)
    for parameter in parameters:
        is_open = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if is_open and parameter.name not in given:
            given[parameter.name] = _stand_in(parameter.name, kinds.get(parameter.name))
    seen: list[tuple[Call, Prompt]] = []
    backend = _StandIn()

    def watch(call: Call, prompt: Prompt) -> None:
        if len(seen) >= MAX_CALLS:
            raise ProgramError(f"more than {MAX_CALLS} calls")
        backend.number = len(seen) + 1
        seen.append((call, prompt))

    around = Surroundings(backend=backend, report=Report(), is_streaming=False, defaults={}, watch=watch)
    stopped = None
    try:
        stopped = _run(function, State(around), given, backend.home)
        for track in tuple(around.tracks):
            backend.home.wait(track.look())
    except ProgramError as error:
        stopped = stopped or str(error)
    finally:
        backend.home.close()
    return Trace(
        name=name,
        arguments=tuple(parameter.name for parameter in parameters),
        calls=_calls(seen),
        constant_prefix=_constant(seen[0][1].key) if seen else "",
        stopped=stopped,
    )


def _run(function: Callable[..., Any], state: State, arguments: Mapping[str, Any], home: Home) -> str | None:
    """Why the function could not go on, if so: it may well not take a stand-in for what it is."""
    try:
        if inspect.iscoroutinefunction(function):
            home.start(function(state, **arguments)).result()
        else:
            function(state, **arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _kinds(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The types of the parameters, where they can be told."""
    try:
        return get_type_hints(function)
    except NameError:  # one that only a type checker sees
        return {}


def _stand_in(name: str, kind: object) -> object:
    """A value that prints as a mark: a string, a whole number (2), two of what there are several of, or `_Unknown`."""
    mark = f"\ue000a{name}\ue001"
    if kind is str:
        return mark
    if kind is int:
        return _Number.of(mark)
    if get_origin(kind) in _SEVERAL:
        of, *_ = get_args(kind)
        return [_stand_in(f"{name}[{i}]", of) for i in range(2)]
    return _Unknown(mark)


class _Number(int):
    """The number 2, which prints as a mark."""

    mark: str

    @classmethod
    def of(cls, mark: str) -> Self:
        number = cls(2)
        number.mark = mark
        return number

    def __str__(self) -> str:
        return self.mark

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return self.mark


class _Unknown(str):
    """A mark for an argument of any other type, of which only its place in the prompt is known."""

    __slots__ = ()

    def _refuse(self) -> NoReturn:
        name = self.strip("\ue000\ue001").removeprefix("a")
        raise TypeError(f"{name!r} is a stand-in here, and can't be taken apart. Give it: {name}=…")

    def __iter__(self) -> Iterator[str]:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()

    def __getitem__(self, key: object) -> str:
        self._refuse()

    def __bool__(self) -> bool:
        return True


class _StandIn:
    """Answers each call with a mark that bears its number."""

    def __init__(self) -> None:
        self.home = Home()
        self.turns = Turns(1)
        self.number = 0

    async def generate(self, prompt: Prompt, wish: Wish, put: Callable[[str], None] | None) -> Answer:
        text = f"\ue000g{self.number} yes\ue001"
        return Answer(texts=(text,) * wish.n, finish_reasons=("stop",) * wish.n, usage=Usage())

    async def score(self, prompt: Prompt, choices: Sequence[str]) -> Scores:
        return Scores(choices=tuple(Scored(token_ids=(0,), logprobs=(0.0,)) for _ in choices), usage=Usage())

    async def score_alone(self, token_ids: Sequence[Sequence[int]]) -> Scores:
        return Scores(choices=tuple(Scored(token_ids=(0,), logprobs=(0.0,)) for _ in token_ids), usage=Usage())


def _calls(seen: Sequence[tuple[Call, Prompt]]) -> tuple[TracedCall, ...]:
    calls: list[TracedCall] = []
    # Of all keys so far, the one with the longest common beginning is a neighbour in their order.
    earlier: list[tuple[str, int]] = []
    for number, (call, prompt) in enumerate(seen, start=1):
        key = prompt.key
        place = bisect_left(earlier, (key, 0))
        shared_characters, shared_with = max(
            ((_common(key, other), each) for other, each in earlier[max(place - 1, 0) : place + 1]), default=(0, None)
        )
        insort(earlier, (key, number))
        calls.append(
            TracedCall(
                number=number,
                what=describe(call.expression),
                place=call.slot.place,
                parts=_parts(key),
                depends_on=tuple(sorted({int(answer) for _, answer in _MARK.findall(key) if answer})),
                constant_characters=len(_constant(key)),
                shared_characters=shared_characters,
                shared_with=shared_with if shared_characters else None,
            )
        )
    return tuple(calls)


def _common(first: str, second: str) -> int:
    return len(commonprefix([first, second]))  # noqa: RUF071 - these are no paths


def _constant(key: str) -> str:
    return key.partition("\ue000")[0]


def _parts(key: str) -> tuple[str, ...]:
    parts = []
    position = 0
    for mark in _MARK.finditer(key):
        if mark.start() > position:
            parts.append(f"{mark.start() - position:,} characters")
        argument, number = mark.groups()
        parts.append(f"[{number}]" if number else f"{{{argument}}}")
        position = mark.end()
    if len(key) > position:
        parts.append(f"{len(key) - position:,} characters")
    return tuple(parts)
