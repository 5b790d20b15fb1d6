"""Reads a JSON body field by field, so that a wrong type is refused with the field's name, and an unknown one noted.

`null` means default everywhere, and a bool is no number. Knows no field's name or meaning.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Mapping

import orjson
from aiohttp import web

from wire.errors import Refused

log = logging.getLogger(__name__)

BODY_S = 120.0
"""How long a request's body may take to arrive."""

_SHOWN_CHARACTERS = 60

_MAX_ITEMS = 100_000
"""Objects in one list, at most: each takes a kilobyte while it is read."""

_MAX_NOTED_NAMES = 100
"""Unknown names that are logged and remembered; whoever makes up more is not worth the log."""


class Fields:
    """The fields of one JSON object; `path` is where it stands in the body."""

    def __init__(self, data: Mapping[str, object], path: str = "") -> None:
        self._data = data
        self._path = path
        self._read: set[str] = set()

    def name(self, field: str) -> str:
        """The field's full name, for messages."""
        return f"{self._path}.{field}" if self._path else field

    def raw(self, field: str) -> object:
        """The value as it came; None when absent."""
        self._read.add(field)
        return self._data.get(field)

    def integer(self, field: str) -> int | None:
        """A whole number."""
        value = self.raw(field)
        if value is None or type(value) is int:
            return value
        raise self.wrong_type(field, "an integer", value)

    def number(self, field: str) -> float | None:
        """A number."""
        value = self.raw(field)
        if value is None or type(value) is int or type(value) is float:
            return value
        raise self.wrong_type(field, "a number", value)

    def boolean(self, field: str, default: bool) -> bool:
        """True or false."""
        value = self.raw(field)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise self.wrong_type(field, "true or false", value)

    def string(self, field: str) -> str | None:
        """A string."""
        value = self.raw(field)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong_type(field, "a string", value)

    def strings(self, field: str) -> tuple[str, ...]:
        """A string or a list of strings; none when absent."""
        value = self.raw(field)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise self.wrong_type(field, "a string or a list of strings", value)

    def integers(self, field: str) -> tuple[int, ...]:
        """A list of whole numbers; none when absent."""
        value = self.raw(field)
        if value is None:
            return ()
        if isinstance(value, list) and is_integers(value):
            return tuple(value)
        raise self.wrong_type(field, "a list of integers", value)

    def fields(self, field: str) -> Fields:
        """An object; empty when absent."""
        value = self.raw(field)
        if value is None:
            value = {}
        if isinstance(value, dict):
            return Fields(value, self.name(field))
        raise self.wrong_type(field, "an object", value)

    def mapping(self, field: str) -> dict[str, object]:
        """An object taken as a whole; empty when absent."""
        value = self.raw(field)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        raise self.wrong_type(field, "an object", value)

    def items(self, field: str) -> list[Fields]:
        """A list of objects; empty when absent."""
        value = self.raw(field)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong_type(field, "a list of objects", value)
        if len(value) > _MAX_ITEMS:
            name = self.name(field)
            raise Refused(
                f"{name} has {len(value):,} items; at most {_MAX_ITEMS:,} are allowed. Send fewer.", field=name
            )
        for i, item in enumerate(value):
            if not isinstance(item, dict):
                raise self.wrong_type(f"{field}[{i}]", "an object", item)
        return [Fields(item, f"{self.name(field)}[{i}]") for i, item in enumerate(value)]

    def everything(self) -> dict[str, object]:
        """The whole object, whatever it holds."""
        self._read.update(self._data)
        return dict(self._data)

    def refuse(self, unsupported: Mapping[str, object]) -> None:
        """Refuse each field that is not supported yet, unless it is empty or has the value given here as harmless.

        Raises:
            Refused: names the first such field.
        """
        for field, harmless in unsupported.items():
            value = self.raw(field)
            if not (_is_empty(value) or (value == harmless and not isinstance(value, bool))):
                raise Refused(
                    f"{self.name(field)} is not supported yet, got {shown(value)}. Leave it out.",
                    field=self.name(field),
                )

    def wrong_type(self, field: str, wanted: str, value: object) -> Refused:
        """The error for a value of the wrong type."""
        name = self.name(field)
        return Refused(f"{name} must be {wanted}, got {shown(value)}. Change {name}.", field=name)

    def warn_unknown(self, seen: set[str]) -> None:
        """Log each field that nobody has read, once per name (`seen` remembers), up to a limit."""
        for field in self._data:
            if len(seen) >= _MAX_NOTED_NAMES:
                return
            if field in self._read:
                continue
            name = shown(self.name(field))
            if name not in seen:
                seen.add(name)
                log.warning("unknown field ignored: %s", name)


def is_integers(values: list[object]) -> bool:
    """Whether all are integers, none of them a bool."""
    return set(map(type, values)) <= {int}


def _is_empty(value: object) -> bool:
    match value:
        case None | False | "":
            return True
        case list():
            return all(item in (None, "") for item in value)
        case dict():
            return not value
        case _:
            return False


def shown(value: object) -> str:
    """A value for a message: as JSON, shortened."""
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # nested too deeply
        text = f"a deeply nested {type(value).__name__}"
    text = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    return "".join(character if character.isprintable() else f"\\u{ord(character):04x}" for character in text)


async def read_fields(request: web.Request) -> Fields:
    """The request's body.

    Raises:
        Refused: it is no JSON object in UTF-8.
        web.HTTPRequestEntityTooLarge: it is over the limit.
        web.HTTPRequestTimeout: it has not come within `BODY_S`.
    """
    if (request.content_length or 0) > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size, request.content_length or 0)
    try:
        async with asyncio.timeout(BODY_S):
            body = await request.read()
    except TimeoutError as error:
        raise web.HTTPRequestTimeout from error
    try:
        data = _parsed(body)
    except orjson.JSONDecodeError as error:
        raise Refused(f"the body is no valid JSON: {error}. Send a JSON object in UTF-8.") from error
    if not isinstance(data, dict):
        raise Refused(f"the body must be a JSON object, got {shown(data)}. Send a JSON object.")
    return Fields(data)


def _parsed(body: bytes) -> object:
    """The body's JSON. Without the collector, which looks at all of millions of objects again and again meanwhile.

    The parser holds the interpreter's lock, so a thread for it would not free the event loop.
    """
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        return orjson.loads(body)
    finally:
        if was_collecting:
            gc.enable()
