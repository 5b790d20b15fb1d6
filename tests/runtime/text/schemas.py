"""JSON schemas across all keywords of the standard, over 200 of them: what forced answers are tried with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

Schema = dict[str, object]

STRING: Schema = {"type": "string", "maxLength": 6}
INTEGER: Schema = {"type": "integer", "minimum": 0, "maximum": 99}
BOOLEAN: Schema = {"type": "boolean"}
SIMPLE: tuple[Schema, ...] = (STRING, INTEGER, BOOLEAN, {"type": "null"}, {"enum": ["a", 5, None, {"x": [1]}]})


def _object(properties: Schema, **more: object) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **more,
    }


def _types() -> Iterator[Schema]:
    for kind in ("string", "integer", "number", "boolean", "null", "array", "object"):
        yield {"type": kind}
    for pair in itertools.combinations(("string", "integer", "boolean", "null", "number"), 2):
        yield {"type": list(pair)}
    yield from ({}, {"const": {"a": [1, "x"]}}, {"const": 'é"\\'}, {"const": None}, {"enum": [1, 2.5, "x"]})


def _numbers() -> Iterator[Schema]:
    for low, high in itertools.product((-1000, -7, 0, 3), (7, 123, 100000)):
        yield {"type": "integer", "minimum": low, "maximum": high}
        yield {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high}
        yield {"type": "number", "minimum": low, "maximum": high}
    for factor in (1, 2, 5, 10, 0.5, 0.25, 7):
        yield {"type": "number", "multipleOf": factor, "minimum": 0, "maximum": 50}
    yield from ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, {"type": "integer", "minimum": 5})


def _strings() -> Iterator[Schema]:
    for shortest, longest in ((0, 0), (0, 1), (1, 1), (2, 5), (10, 40)):
        yield {"type": "string", "minLength": shortest, "maxLength": longest}
    for pattern in ("^a+$", "^[a-f0-9]{8}$", "b", "^(foo|bar)$", r"^\d{3}-\d{4}$", r"^\S+$", "^[^x]{2}$", "^é+$", "$^"):
        yield {"type": "string", "pattern": pattern}
    for name in (
        "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "regex",
        "json-pointer", "uri-reference", "idn-email", "unheard-of",
    ):  # fmt: skip
        yield {"type": "string", "format": name}
    yield from ({"type": "string", "contentEncoding": "base64"}, {"type": "string", "pattern": "^a", "maxLength": 4})


def _arrays() -> Iterator[Schema]:
    for item, (least, most) in itertools.product(SIMPLE, ((0, 2), (1, 1), (2, 4))):
        yield {"type": "array", "items": item, "minItems": least, "maxItems": most}
    yield {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2}
    yield {"type": "array", "prefixItems": [STRING], "items": BOOLEAN, "maxItems": 3}
    yield {"type": "array", "items": {"type": "array", "items": INTEGER, "maxItems": 2}, "maxItems": 2}
    yield {"type": "array", "items": INTEGER, "uniqueItems": True, "maxItems": 3}
    yield {"type": "array", "contains": {"const": 5}, "maxItems": 3}
    yield {"type": "array", "contains": INTEGER, "minContains": 1, "maxContains": 2, "maxItems": 3}
    yield {"type": "array", "items": INTEGER, "unevaluatedItems": False, "maxItems": 2}
    yield from ({"type": "array", "items": True, "maxItems": 1}, {"type": "array", "items": False})


def _objects() -> Iterator[Schema]:
    for first, second in itertools.product(SIMPLE, SIMPLE):
        yield _object({"a": first, "b": second})
    for item in SIMPLE:
        yield _object({"a": item}, required=[])
        yield {"type": "object", "additionalProperties": item, "maxProperties": 2}
        yield {"type": "object", "patternProperties": {"^x": item}, "additionalProperties": False}
    yield _object({"a": _object({"b": _object({"c": INTEGER})})})
    yield _object({'é"\\\n': INTEGER, "": STRING})
    yield {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": INTEGER}
    yield {"type": "object", "propertyNames": {"pattern": "^[a-c]$"}, "additionalProperties": INTEGER}
    yield _object({"a": INTEGER, "b": INTEGER}, required=["a"], dependentRequired={"a": ["b"]})
    yield _object({"a": INTEGER}, dependentSchemas={"a": {"required": ["a"]}})
    yield {"type": "object", "properties": {"a": INTEGER}, "unevaluatedProperties": False}
    yield {"type": "object", "properties": {"a": False}}
    yield {"type": "object", "required": ["z"], "additionalProperties": INTEGER, "maxProperties": 2}


def _joined() -> Iterator[Schema]:
    for pair in itertools.combinations(SIMPLE, 2):
        yield {"anyOf": list(pair)}
        yield {"oneOf": list(pair)}
    yield {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]}
    yield {"allOf": [_object({"a": INTEGER}, additionalProperties=True), {"required": ["a"], "maxProperties": 1}]}
    yield {"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 9}]}
    yield from ({"not": {"type": "string"}}, {"type": "integer", "not": {"const": 5}, "maximum": 9})
    yield {"if": {"type": "integer"}, "then": {"minimum": 5}, "else": {"type": "string"}}
    yield {"anyOf": [_object({"kind": {"const": "a"}, "x": INTEGER}), _object({"kind": {"const": "b"}, "y": STRING})]}
    yield {"anyOf": []}


def _references() -> Iterator[Schema]:
    tree = _object({"value": INTEGER, "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}})
    yield {"$ref": "#/$defs/tree", "$defs": {"tree": tree}}
    yield _object({"a": {"$ref": "#/definitions/i"}}, definitions={"i": INTEGER})
    yield _object({"a": {"$ref": "#/properties/b"}, "b": INTEGER})
    yield {"$ref": "#/$defs/nowhere"}
    yield {"$ref": "https://elsewhere.example/schema.json"}
    yield {"$defs": {"a": {"$anchor": "here", **INTEGER}}, "$ref": "#here"}
    yield {"$dynamicRef": "#node", "$defs": {"node": {"$dynamicAnchor": "node", "type": "integer"}}}
    yield {"$schema": "http://json-schema.org/draft-07/schema#", "title": "t", "description": "d", **INTEGER}
    yield {**INTEGER, "default": 5, "examples": [5], "deprecated": True, "readOnly": True, "$comment": "c"}
    yield {"$id": "https://here.example/schema", **STRING}


def all_schemas() -> list[Schema]:
    """All of them, in a fixed order."""
    makers = (_types, _numbers, _strings, _arrays, _objects, _joined, _references)
    return [schema for make in makers for schema in make()]
