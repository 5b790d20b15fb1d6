"""Reads a JSON body field by field, so that a wrong type is refused with the field's name, and an unknown one noted.

A body is checked as a whole against its route's schema first; what is read here must be named there, so that the
published document knows every field. `null` means default everywhere, and a bool is no number. Knows no field's name or
meaning.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Collection, Mapping

import orjson
from aiohttp import web

from wire.errors import Refused
from wire.names import near

from . import body_encoding
from .schema import NOT_SUPPORTED, Schema, check, shown

log = logging.getLogger(__name__)

BODY_SCHEMA = web.RequestKey("body_schema", dict[str, object])
"""Where a route leaves the schema of its body."""

BODY_S = 120.0
"""How long a request's body may take to arrive."""

_MAX_ITEMS = 100_000
"""Objects in one list, at most: each takes a kilobyte while it is read."""

_MOST_CONTAINERS = 250_000
_MOST_VALUES = 3_000_000
"""Objects and lists, and values, in a body: the loop stands still for up to 0.3 us and 0.07 us for each."""

_UNCOUNTED_BYTES = 2 * _MOST_CONTAINERS
"""A shorter body is not counted: what opens an object or a list has to be closed."""

_CHECKED_INLINE_VALUES = 2000
"""The check of more would hold up the streams; of fewer it takes less time than a thread's wake-up, or little more."""

_MAX_NOTED_NAMES = 100
"""Unknown names that are logged and remembered; whoever makes up more is not worth the log."""

_MAX_TOLD_NAMES = 8
_LONGEST_GUESSED = 64
"""A longer name is no known one that was mistyped."""

IGNORED_HEADER = "X-Axil-Ignored"
_IGNORED = web.RequestKey("ignored", list[str])
"""What was ignored of the request's body, as it's told."""

_LONGEST_INTEGER = 19
"""Digits of an integer in a query."""


class Fields:
    """The fields of one JSON object; `path` is where it stands in the body, `schema` what it may hold."""

    def __init__(
        self,
        data: Mapping[str, object],
        path: str = "",
        schema: Schema | None = None,
        ignored: list[str] | None = None,
    ) -> None:
        self._data = data
        self._path = path
        self._schema = schema or {}
        self._ignored = [] if ignored is None else ignored
        self._known = self._schema.get("properties")
        self._read: set[str] = set()

    def name(self, field: str) -> str:
        """The field's full name, for messages."""
        return f"{self._path}.{field}" if self._path else field

    def raw(self, field: str) -> object:
        """The value as it came; None when absent."""
        is_known = not isinstance(self._known, dict) or field in self._known
        assert is_known, f"{self.name(field)} is read, but its route's schema does not name it"
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
            return Fields(value, self.name(field), self._schema_of(field), self._ignored)
        raise self.wrong_type(field, "an object", value)

    def each(self, field: str, value: object) -> Fields:
        """An object of which `value`, one of several in `field`, stands in the field's place."""
        return Fields({field: value}, self._path, self._schema, self._ignored)

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
        schema = self._schema_of(field)
        return [Fields(item, f"{self.name(field)}[{i}]", schema, self._ignored) for i, item in enumerate(value)]

    def everything(self) -> dict[str, object]:
        """The whole object, whatever it holds."""
        self._read.update(self._data)
        return dict(self._data)

    def _is_refused(self, field: str) -> bool:
        """Whether the field is known and not offered; what it holds asks for nothing, or the body was refused."""
        schema = self._known.get(field) if isinstance(self._known, dict) else None
        return isinstance(schema, dict) and NOT_SUPPORTED in schema

    def _schema_of(self, field: str) -> Schema | None:
        return _schema_of_object(self._known.get(field)) if isinstance(self._known, dict) else None

    def wrong_type(self, field: str, wanted: str, value: object) -> Refused:
        """The error for a value of the wrong type."""
        name = self.name(field)
        return Refused(f"{name} must be {wanted}, got {shown(value)}. Change {name}.", field=name)

    def warn_unknown(self, seen: dict[str, str]) -> None:
        """Tell of each field that nobody has read, in the answer's header, and once per name in the log.

        What is told of a name is remembered in `seen`, up to a limit; others are not told.
        """
        for field in self._data:
            if field in self._read or self._is_refused(field):
                continue
            name = shown(self.name(field))
            if name not in seen:
                if len(seen) >= _MAX_NOTED_NAMES:
                    return
                known = self._known if isinstance(self._known, dict) else ()
                seen[name] = name + (near(field, known) if len(field) <= _LONGEST_GUESSED else "")
                log.warning("unknown field ignored: %s", seen[name])
            if len(self._ignored) < _MAX_TOLD_NAMES:
                self._ignored.append(seen[name])


def _schema_of_object(schema: object) -> Schema | None:
    """Where `schema` tells of objects: of one, of the items of a list, or of one of several."""
    if not isinstance(schema, dict):
        return None
    if "properties" in schema:
        return schema
    inner = [schema.get("items"), *schema.get("anyOf", ())]
    return next((found for found in map(_schema_of_object, inner) if found is not None), None)


def is_integers(values: list[object]) -> bool:
    """Whether all are integers, none of them a bool."""
    return set(map(type, values)) <= {int}


async def read_fields(request: web.Request) -> Fields:
    """The request's body, checked against the schema of its route.

    Raises:
        Refused: it is no JSON object in UTF-8, or not what its encoding or the schema says.
        web.HTTPRequestEntityTooLarge: it is over the limit.
        web.HTTPRequestTimeout: it has not come within `BODY_S`.
    """
    if (request.content_length or 0) > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size, request.content_length or 0)
    try:
        async with asyncio.timeout(BODY_S):
            packed = await request.read()
    except TimeoutError as error:
        raise web.HTTPRequestTimeout from error
    encoding = request.headers.get(body_encoding.HEADER, "")
    try:
        body = await body_encoding.unpacked(packed, encoding, most_bytes=request.client_max_size)
    except body_encoding.TooLarge as error:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size, len(packed)) from error
    _check_count(body)
    try:
        data = _parsed(body)
    except orjson.JSONDecodeError as error:
        raise Refused(f"the body is no valid JSON: {error}. Send a JSON object in UTF-8.") from error
    if not isinstance(data, dict):
        raise Refused(f"the body must be a JSON object, got {shown(data)}. Send a JSON object.")
    schema: Schema = request[BODY_SCHEMA]
    if _holds_more(data, _CHECKED_INLINE_VALUES):
        await asyncio.to_thread(check, schema, data, "")
    else:
        check(schema, data, "")
    ignored = request[_IGNORED] = []
    return Fields(data, schema=schema, ignored=ignored)


async def add_ignored_header(request: web.Request, response: web.StreamResponse) -> None:
    """Called for each answer before its head is sent."""
    if ignored := request.get(_IGNORED):
        response.headers[IGNORED_HEADER] = ", ".join(ignored)


def _check_count(body: bytes) -> None:
    """Refuse what would take long to read. Signs are counted, those in texts too: no prompt that fits has so many."""
    if len(body) <= _UNCOUNTED_BYTES:
        return
    for what, most, num in (
        ("objects and lists", _MOST_CONTAINERS, body.count(b"{") + body.count(b"[")),
        ("values", _MOST_VALUES, body.count(b",")),
    ):
        if num > most:
            raise Refused(
                f"the body has up to {num:,} {what}; at most {most:,} are read at once, since all streams wait "
                "meanwhile. Send several requests."
            )


def _holds_more(data: object, most: int) -> bool:
    """Whether there are more than `most` values in `data`, those within others included."""
    num_values, within = 0, [data]
    while within:
        each = within.pop()
        values: Collection[object] = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        num_values += len(values)
        if num_values > most:
            return True
        within += [value for value in values if isinstance(value, dict | list)]
    return False


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


def read_query(request: web.Request, schema: Schema) -> dict[str, object]:
    """What stands behind the path's question mark, its numbers read, when `schema` allows it.

    Raises:
        Refused: something is not what it may be; the message names it.
    """
    asked: dict[str, object] = dict(request.query)
    properties = schema["properties"]
    assert isinstance(properties, dict)
    for name, value in request.query.items():
        kinds = properties.get(name, {}).get("type", ())
        if "number" in kinds:
            asked[name] = _number(name, value)
        if "integer" not in kinds:
            continue
        if not (value.isascii() and value.isdigit() and len(value) < _LONGEST_INTEGER):
            raise Refused(f"{name} must be an integer, got {shown(value)}. Change {name}.", field=name)
        asked[name] = int(value)
    check(schema, asked, "")
    return asked


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise Refused(f"{name} must be a number, got {shown(text)}. Change {name}.", field=name) from error
