"""Command-line flags from frozen dataclasses: the field is the only place of a default, a help text and a choice."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any


def flag(default: Any, help: str, *, choices: Sequence[str] | None = None, metavar: str | None = None) -> Any:
    """A dataclass field that is also a command-line flag; `max_running` becomes `--max-running`."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices, "metavar": metavar})


def add_flags(parser: argparse.ArgumentParser, cls: type[Any], *, title: str) -> None:
    """Add a group of flags for every `flag` field of `cls`; bools become `--x/--no-x`."""
    group = parser.add_argument_group(title)
    for field, kind in _flag_fields(cls):
        name = "--" + field.name.replace("_", "-")
        text = f"{field.metadata['help']} (default: {_shown(field.default)})".replace("%", "%%")
        if kind is bool and field.default:
            switch = group.add_argument(name, action=argparse.BooleanOptionalAction, default=True)
            switch.help = text  # given above, the default would be told twice before Python 3.13
            continue
        if kind is bool:
            group.add_argument(name, action="store_true", default=False, help=text)
            group.add_argument(
                name.replace("--", "--no-", 1), action="store_false", dest=field.name, help=argparse.SUPPRESS
            )
            continue
        group.add_argument(
            name,
            type=kind,
            default=field.default,
            choices=field.metadata["choices"],
            metavar=field.metadata["metavar"] or (None if field.metadata["choices"] else kind.__name__.upper()),
            help=text,
        )


def from_flags(cls: type[Any], args: argparse.Namespace) -> Any:
    """Build `cls` from parsed arguments.

    Raises:
        ValueError: from the class's own `__post_init__`, naming the flag.
    """
    return cls(**{field.name: getattr(args, field.name) for field, _ in _flag_fields(cls)})


def flag_names(cls: type[Any]) -> list[str]:
    """The fields of `cls` that are flags."""
    return [field.name for field, _ in _flag_fields(cls)]


def checked_value(cls: type[Any], name: str, value: object) -> Any:
    """Return `value` when its type and choice suit the flag `name` of `cls`; None suits those that have an "auto".

    Raises:
        ValueError: names the flag, what it takes and the given value.
    """
    field, kind = next((field, kind) for field, kind in _flag_fields(cls) if field.name == name)
    flag_name = "--" + name.replace("_", "-")
    if value is None and field.default is None:
        return None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]
        raise ValueError(f"{flag_name} must be {wanted}, got {value!r}")
    choices = field.metadata["choices"]
    if choices is not None and value not in choices:
        raise ValueError(f"{flag_name} must be one of {', '.join(choices)}, got {value!r}")
    return value


def _shown(default: Any) -> str:
    match default:
        case None:
            return "auto"
        case bool():
            return "on" if default else "off"
        case _:
            return str(default)


def _flag_fields(cls: type[Any]) -> Iterator[tuple[dataclasses.Field[Any], type[Any]]]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if "help" in field.metadata:
            yield field, _plain_type(hints[field.name])


def _plain_type(hint: Any) -> type[Any]:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    return typing.cast("type[Any]", hint)
