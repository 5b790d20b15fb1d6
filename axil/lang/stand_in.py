"""Stand-ins for arguments and answers: values that a program can go on with, and that print as marks in prompts.

A mark is text of private use characters, which no prompt holds; `shown` makes what people may read of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NoReturn, Self, get_args, get_origin

import msgspec

from wire.errors import Refused

from .backend import Wish
from .specimen import of_regex, of_schema

MARK = re.compile(
    # As it stands in text, and as `repr` writes it.
    r"(?:\ue000|\\ue000)(?:a(?P<argument>\w+(?:\[\d\])*)|g(?P<call>\d+)|r(?P<role>\w+))(?:\ue001|\\ue001)?"
)
_REST = re.compile(r"(?:\ue000|\\ue000|\ue001|\\ue001)")
_SEVERAL = (list, tuple, Sequence, Collection, Iterable)


def marked_call(number: int) -> str:
    """The mark of a call's answer."""
    return f"\ue000g{number}\ue001"


def marked_role(role: str) -> str:
    """The mark of a turn's beginning."""
    return f"\ue000r{role}\ue001"


def shown(text: str) -> str:
    """The text with `{argument}`, `[call]` and `role:` in place of marks, and no private use characters."""
    return _REST.sub("", MARK.sub(_name, text))


def for_argument(name: str, kind: object) -> object:
    """A value that prints as a mark: a string, a whole number (2), two of what there are several of, or `_Unknown`."""
    mark = f"\ue000a{name}\ue001"
    if kind is str:
        return mark
    if kind is int:
        return _printed(2, mark)
    if get_origin(kind) in _SEVERAL:
        of, *_ = get_args(kind)
        return [for_argument(f"{name}[{i}]", of) for i in range(2)]
    return _Unknown(mark)


def for_choice(choice: str, mark: str) -> str:
    """The choice, which prints as `mark`."""
    return _Fitting.of(choice, mark)


def for_form(wish: Wish, dtype: type | None, mark: str) -> object:
    """A value of the form that a call asks for, which prints as `mark`; the mark itself where it asks for none."""
    if dtype is bool:
        return True
    if dtype in (int, float):
        return _printed(dtype(2), mark)
    try:
        if wish.json_schema is not None:
            value = of_schema(msgspec.json.decode(wish.json_schema), mark)
            return _Fitting.of(msgspec.json.encode(value).decode(), mark)
        text = None if wish.regex is None else of_regex(wish.regex)
    except (Refused, ValueError):  # a form that no answer suits, or that is not understood here
        return mark
    return mark if text is None else _Fitting.of(text, mark)


def _name(mark: re.Match[str]) -> str:
    if mark["role"]:
        return f"{mark['role']}:"
    return f"[{mark['call']}]" if mark["call"] else f"{{{mark['argument']}}}"


def _printed(number: float, mark: str) -> object:
    """A number that prints as a mark."""
    kind = type(number)
    ways = {"__str__": lambda _: mark, "__repr__": lambda _: mark, "__format__": lambda _, form: mark}
    return type(kind.__name__, (kind,), ways)(number)


def _kept(name: str) -> Callable[..., Any]:
    """The method of `str`, giving what still prints as the mark."""

    def method(self: _Fitting, *args: Any) -> _Fitting:  # noqa: ANN401 - as the method's
        return _Fitting.of(getattr(str, name)(self, *args), self.mark)

    return method


class _Fitting(str):
    """A text of a wanted form, which ordinary code may compare and parse, and which enters other text as a mark."""

    mark: str

    @classmethod
    def of(cls, text: str, mark: str) -> Self:
        fitting = cls(text)
        fitting.mark = mark
        return fitting

    strip, lstrip, rstrip = _kept("strip"), _kept("lstrip"), _kept("rstrip")
    lower, upper, title, capitalize = _kept("lower"), _kept("upper"), _kept("title"), _kept("capitalize")

    def __str__(self) -> str:
        return self

    def __format__(self, form: str) -> str:
        return self.mark

    def __add__(self, other: str) -> str:
        return self.mark + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return other + self.mark


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
