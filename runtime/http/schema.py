"""What a request's body may be: JSON Schemas, made by a few functions, and the one check that reads them.

The same schemas are published in the OpenAPI document (`openapi.py`). Only the keywords that are written here are
known to `check`. In an object every property that is not required may be null, which means that it is absent.
Knows no route and no field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import orjson

from wire.errors import Refused
from wire.sampling import Range

Schema = dict[str, object]
"""A JSON Schema (draft 2020-12) of the keywords below."""

NOT_SUPPORTED = "x-not-supported"
"""Marks a field that clients know and this server does not: only what asks for nothing may be sent. Says what to do."""

_LEAVE_OUT = "Leave it out."

_SHOWN_CHARACTERS = 60
_TYPES: dict[object, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_ONE = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "string": "a string",
    "array": "a list",
    "object": "an object",
}
_MANY = {
    "integer": "integers",
    "number": "numbers",
    "boolean": "booleans",
    "string": "strings",
    "array": "lists",
    "object": "objects",
}


def integer(low: int | None = None, high: int | None = None, *, text: str = "") -> Schema:
    """A whole number."""
    return _said(text, {"type": "integer"} | _given(minimum=low, maximum=high))


def number(low: float | None = None, high: float | None = None, *, text: str = "") -> Schema:
    """A number."""
    return _said(text, {"type": "number"} | _given(minimum=low, maximum=high))


def ranged(range_: Range, kind: str, *, text: str = "") -> Schema:
    """A number ("number" or "integer") in the range of a sampling parameter."""
    low = {"exclusiveMinimum" if range_.is_low_open else "minimum": range_.low}
    return _said(text, {"type": kind} | low | _given(maximum=None if range_.high == math.inf else range_.high))


def boolean(*, text: str = "") -> Schema:
    """True or false."""
    return _said(text, {"type": "boolean"})


def string(*, choices: Sequence[str] = (), longest: int | None = None, text: str = "") -> Schema:
    """A string, one of `choices` if there are some, of `longest` characters at most."""
    return _said(text, {"type": "string"} | _given(enum=list(choices) or None, maxLength=longest))


def list_of(item: Schema, *, least: int | None = None, most: int | None = None, text: str = "") -> Schema:
    """A list."""
    return _said(text, {"type": "array", "items": item} | _given(minItems=least, maxItems=most))


def one_or_list(item: Schema, *, most: int | None = None, text: str = "") -> Schema:
    """One value, or a list of them."""
    return either(item, list_of(item, most=most), text=text)


def for_each(item: Schema, *, text: str = "") -> Schema:
    """One value for all prompts, or a list with one for each, null where there is none."""
    return either(item, list_of(_nullable(item)), text=text)


def mapping(value: Schema | None = None, *, most: int | None = None, text: str = "") -> Schema:
    """An object of any names; `value` is what each holds."""
    return _said(text, {"type": "object"} | _given(additionalProperties=value, maxProperties=most))


def record(properties: Mapping[str, Schema], *, required: Sequence[str] = (), text: str = "") -> Schema:
    """An object of known names; those that are not `required` may be null. Other names are noted and ignored."""
    known = {name: each if name in required else _nullable(each) for name, each in properties.items()}
    return _said(text, {"type": "object", "properties": known} | _given(required=list(required) or None))


def either(*schemas: Schema, text: str = "") -> Schema:
    """One of several."""
    return _said(text, {"anyOf": list(schemas)})


def anything(*, text: str = "") -> Schema:
    """Whatever JSON holds; what it must be is said in the text and checked where it is read."""
    return _said(text, {})


def unsupported(harmless: Mapping[str, object], remedies: Mapping[str, str] | None = None) -> dict[str, Schema]:
    """Fields that may only be sent empty, or with the value given here as harmless; `remedies` says what else to do."""
    remedies = remedies or {}
    return {name: _unsupported(value, remedies.get(name, _LEAVE_OUT)) for name, value in harmless.items()}


def check(schema: Schema, value: object, name: str) -> None:
    """Return when `value`, which stands at `name`, is what `schema` says.

    Raises:
        Refused: it is not; the message names the field, what it may be, and the value.
    """
    if NOT_SUPPORTED in schema:
        if not _fits(schema, value):
            raise Refused(f"{name} is not supported, got {shown(value)}. {schema[NOT_SUPPORTED]}", field=name)
        return
    if "anyOf" in schema:
        _check_any(schema, value, name)
        return
    if not _is_of_type(schema, value):
        raise _wrong(name, _wanted(schema), value)
    if isinstance(value, str):
        _check_string(schema, value, name)
    elif isinstance(value, list):
        _check_list(schema, value, name)
    elif isinstance(value, dict):
        _check_object(schema, value, name)
    elif type(value) is int or type(value) is float:
        _check_number(schema, value, name)


def shown(value: object) -> str:
    """A value for a message: as JSON, shortened."""
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # nested too deeply
        text = f"a deeply nested {type(value).__name__}"
    text = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    return "".join(character if character.isprintable() else f"\\u{ord(character):04x}" for character in text)


def _check_any(schema: Schema, value: object, name: str) -> None:
    """Of several that don't fit, the one that says most is told: about a part of the value, or its size."""
    told: Refused | None = None
    for each in _schemas(schema["anyOf"]):
        if not _is_of_type(each, value):
            continue
        try:
            return check(each, value, name)
        except Refused as error:
            is_inside = error.field != name and _holds_objects(each)
            is_closer = is_inside or ("anyOf" not in each and _is_whole(each, value))
            told = error if told is None and is_closer else told
    raise told or _wrong(name, _wanted(schema), value)


def _holds_objects(schema: Schema) -> bool:
    items = schema.get("items")
    return "properties" in schema or (isinstance(items, dict) and _holds_objects(items))


def _is_whole(schema: Schema, value: object) -> bool:
    """Whether value is of the schema's type, its items too, so that something else must be wrong with it."""
    if not _is_of_type(schema, value):
        return False
    items = schema.get("items")
    return not (isinstance(items, dict) and isinstance(value, list)) or all(_is_of_type(items, each) for each in value)


def _check_string(schema: Schema, value: str, name: str) -> None:
    choices, longest = schema.get("enum"), schema.get("maxLength")
    if isinstance(choices, list) and value not in choices:
        raise _wrong(name, _wanted(schema), value)
    if isinstance(longest, int) and len(value) > longest:
        raise Refused(f"{name} has {len(value):,} characters; at most {longest:,} are allowed. Shorten it.", field=name)


def _check_list(schema: Schema, value: list[object], name: str) -> None:
    least, most, items = schema.get("minItems"), schema.get("maxItems"), schema.get("items")
    if isinstance(least, int) and len(value) < least:
        raise Refused(f"{name} is an empty list; it must hold at least {least}. Send one.", field=name)
    if isinstance(most, int) and len(value) > most:
        raise Refused(f"{name} holds {len(value):,} items; at most {most:,} are allowed. Send fewer.", field=name)
    if not isinstance(items, dict) or not items:
        return
    if items == {"type": "integer"}:  # token ids: there may be a million
        if not set(map(type, value)) <= {int}:
            raise _wrong(name, _wanted(schema), value)
        return
    is_flat = not (_is_of_type(items, {}) or _is_of_type(items, []))
    for i, item in enumerate(value):
        if is_flat and not _is_of_type(items, item):
            raise _wrong(name, _wanted(schema), value)
        check(items, item, f"{name}[{i}]")


def _check_object(schema: Schema, value: dict[str, object], name: str) -> None:
    properties, required, others = schema.get("properties"), schema.get("required"), schema.get("additionalProperties")
    most = schema.get("maxProperties")
    if isinstance(most, int) and len(value) > most:
        raise Refused(f"{name} has {len(value):,} names; at most {most:,} are allowed. Send fewer.", field=name)
    known: dict[str, Schema] = properties if isinstance(properties, dict) else {}
    for field in required if isinstance(required, list) else ():
        if value.get(field) is None:
            where = _inside(name, field)
            raise Refused(f"{where} is missing; it must be {_wanted(known[field])}. Send it.", field=where)
    for field, item in value.items():
        if field in known:
            if item is not None:
                check(known[field], item, _inside(name, field))
        elif isinstance(others, dict):
            check(others, item, f"{name}[{shown(field)}]")


def _check_number(schema: Schema, value: float, name: str) -> None:
    low, above, high = schema.get("minimum"), schema.get("exclusiveMinimum"), schema.get("maximum")
    is_low_ok = (not isinstance(low, int | float) or value >= low) and (
        not isinstance(above, int | float) or value > above
    )
    if is_low_ok and (not isinstance(high, int | float) or value <= high):
        return
    bracket, lowest = ("[", low) if above is None else ("(", above)
    if lowest is None:
        limit = f"at most {_shown_number(high)}"
    elif high is None:
        limit = f"{'at least' if above is None else 'above'} {_shown_number(lowest)}"
    else:
        limit = f"in {bracket}{_shown_number(lowest)}, {_shown_number(high)}]"
    raise Refused(f"{name} must be {limit}, got {value}. Change {name}.", field=name)


def _shown_number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_of_type(schema: Schema, value: object) -> bool:
    if "anyOf" in schema:
        return any(_is_of_type(each, value) for each in _schemas(schema["anyOf"]))
    wanted = schema.get("type")
    if isinstance(wanted, list):
        for name in wanted:  # noqa: SIM110  (a generator would take half of the time of checking a chat)
            if type(value) in _TYPES[name]:
                return True
        return False
    return wanted is None or type(value) in _TYPES[wanted]


def _fits(schema: Schema, value: object) -> bool:
    for each in _schemas(schema["anyOf"]):
        choices = each.get("enum")
        if isinstance(choices, list):
            if any(value == choice and type(value) is type(choice) for choice in choices):
                return True
        elif isinstance(value, list):
            if each["type"] == "array" and all(item in (None, "") for item in value):
                return True
        elif isinstance(value, dict) and each["type"] == "object" and not value:
            return True
    return False


def _unsupported(harmless: object, remedy: str) -> Schema:
    empty = [None, False, "", *([harmless] if harmless is not None else [])]
    return {
        "anyOf": [
            {"enum": empty},
            {"type": "array", "items": {"enum": [None, ""]}},
            {"type": "object", "maxProperties": 0},
        ],
        "description": f"Not supported. {remedy}",
        NOT_SUPPORTED: remedy,
    }


def _nullable(schema: Schema) -> Schema:
    if NOT_SUPPORTED in schema or not schema.keys() & {"type", "anyOf"}:
        return schema
    if "anyOf" in schema:
        return schema | {"anyOf": [*_schemas(schema["anyOf"]), {"type": "null"}]}
    choices = schema.get("enum")
    return (
        schema
        | {"type": [schema["type"], "null"]}
        | _given(enum=[*choices, None] if isinstance(choices, list) else None)
    )


def _schemas(value: object) -> list[Schema]:
    assert isinstance(value, list)
    return value


def _wanted(schema: Schema) -> str:
    if "anyOf" in schema:
        parts = [_wanted(each) for each in _schemas(schema["anyOf"]) if each.get("type") != "null"]
        *others, last = dict.fromkeys(parts)
        return f"{', '.join(others)} or {last}" if others else last
    choices = schema.get("enum")
    if isinstance(choices, list):
        return f"one of {', '.join(str(choice) for choice in choices if choice is not None)}"
    kind = _kind(schema)
    items = schema.get("items")
    if kind == "array" and isinstance(items, dict) and items:
        return f"a list of {_plural(items)}"
    return _ONE.get(kind, "some value")


def _plural(schema: Schema) -> str:
    if "anyOf" in schema:
        return " or ".join(_plural(each) for each in _schemas(schema["anyOf"]) if each.get("type") != "null")
    kind, items = _kind(schema), schema.get("items")
    if kind == "array" and isinstance(items, dict) and items:
        return f"lists of {_plural(items)}"
    return _MANY.get(kind, "values")


def _kind(schema: Schema) -> str:
    kind = schema.get("type")
    return str(kind[0] if isinstance(kind, list) else kind)


def _wrong(name: str, wanted: str, value: object) -> Refused:
    return Refused(f"{name} must be {wanted}, got {shown(value)}. Change {name}.", field=name)


def _inside(name: str, field: str) -> str:
    return f"{name}.{field}" if name else field


def _given(**keywords: object) -> Schema:
    return {name: value for name, value in keywords.items() if value is not None}


def _said(text: str, schema: Schema) -> Schema:
    return schema | {"description": text} if text else schema
