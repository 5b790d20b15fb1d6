"""The least of what suits a form: a value for a JSON schema, a text for a regular expression. Knows no calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from runtime.forced_forms import regex

MAX_DEPTH = 16
"""A schema that is nested deeper holds itself."""

_MAX_CHARACTERS = 1000
# What is read most easily first; quotes, line ends and the like last.
_PREFERRED = b"2013456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.,:;/ "
_ORDER = {byte: rank for rank, byte in enumerate(_PREFERRED)}


def of_schema(schema: object, text: str) -> Any:  # noqa: ANN401 - any value of JSON
    """Give a value that suits a JSON schema, with `text` for strings that may be any; two of what there may be several.

    What the schema says beyond types, values, properties, items and bounds is passed over.

    Raises:
        ValueError: the schema holds itself without an end.
    """
    return _value(schema, schema, text, 0)


def of_regex(pattern: str) -> str | None:
    """Give a short text that `pattern` matches; None where the simplest way on doesn't come to an end.

    >>> of_regex("(yes|no): [0-9]+"), of_regex("a.*b")
    ('no: 2', None)

    Raises:
        Refused: the pattern repeats something too often.
    """
    matcher = LLMatcher(LLTokenizer("byte"), regex(pattern).source, log_level=0)
    found = bytearray()
    while not matcher.is_accepting():
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        ways = [byte for byte in range(256) if allowed >> byte & 1]
        if not ways or len(found) == _MAX_CHARACTERS:
            return None
        found.append(min(ways, key=lambda byte: _ORDER.get(byte, len(_ORDER) + byte)))
        matcher.consume_token(found[-1])
    return found.decode(errors="replace")


def _value(schema: object, root: object, text: str, depth: int) -> Any:  # noqa: ANN401 - any value of JSON
    if depth > MAX_DEPTH:
        raise ValueError("the schema holds itself without an end")
    if not isinstance(schema, Mapping):
        return text
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if isinstance(reference := schema.get("$ref"), str):
        return _value(_referred(root, reference), root, text, depth + 1)
    for of in ("anyOf", "oneOf", "allOf"):
        if schema.get(of):
            return _value(schema[of][0], root, text, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    match kind:
        case "object":
            required = schema.get("required", ())
            return {
                name: _value(each, root, text, depth + 1)
                for name, each in {**dict.fromkeys(required), **schema.get("properties", {})}.items()
                if name in required or depth < MAX_DEPTH // 2
            }
        case "array":
            num_items = max(schema.get("minItems", 0), min(2, schema.get("maxItems", 2)))
            first = list(schema.get("prefixItems", ()))
            items = [*first, *[schema.get("items")] * (num_items - len(first))]
            return [_value(each, root, text, depth + 1) for each in items]
        case "integer" | "number":
            return max(schema.get("minimum", 2), min(2, schema.get("maximum", 2)))
        case "boolean":
            return True
        case "null":
            return None
        case _:
            pattern = schema.get("pattern")
            return text if pattern is None else of_regex(pattern) or text


def _referred(root: object, reference: str) -> object:
    found = root
    for name in reference.removeprefix("#").split("/")[1:]:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
