"""Tool calls as a list of Python's: `[weather(city="Rome", days=2), time()]`. Nothing is run: only literals count."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable, Mapping, Sequence

from runtime.text.pieces import Call

from .brackets import Brackets
from .form import NotACall, Tool, json_rule, made_call, parameters_of, plain_body_at, shared_schemas

_JSON_NAMES: dict[str, object] = {"true": True, "false": False, "null": None}


class PythonicForm:
    """A list at the start of the answer, or behind `<|python_start|>`."""

    marks: tuple[str, ...] = ("<|python_start|>",)
    anchors = "["
    closings: tuple[str, ...] = ("<|python_end|>",)
    id_characters: int | None = None

    def body_at(self, text: str) -> int | None:
        """The list."""
        return plain_body_at(text, "[")

    def body(self, start: int) -> Brackets:
        """Its brackets."""
        return Brackets(start, "\"'")

    def telling(self, text: str, start: int, tools: Mapping[str, Tool]) -> None:
        """Python is only read whole."""

    def calls(self, text: str, tools: Mapping[str, Tool]) -> list[Call]:
        """All calls of the list."""
        try:
            with warnings.catch_warnings(action="ignore"):  # of odd escapes in strings
                tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise NotACall from error
        if not isinstance(tree, ast.List) or not tree.elts:
            raise NotACall
        return [_call(item) for item in tree.elts]

    def write(self, call: Call) -> str:
        """A list of one, as the first thing of an answer."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in json.loads(call.arguments).items())
        return f"[{call.name}({arguments})]"

    def grammar(self, tools: Sequence[Tool], literal: Callable[[str], str], *, is_single: bool) -> str:
        """Required arguments first; their values are JSON, which is read as well."""
        more = "" if is_single else ' (", " call)*'
        names = " | ".join(f"call_{i}" for i in range(len(tools)))
        rules = "".join(_rules(tool, f"call_{i}") for i, tool in enumerate(tools))
        return f'calls: "[" call{more} "]"\ncall: {names}\n{rules}'


def _call(item: ast.expr) -> Call:
    if not isinstance(item, ast.Call) or item.args:
        raise NotACall
    arguments = {keyword.arg: _value(keyword.value) for keyword in item.keywords if keyword.arg is not None}
    if len(arguments) != len(item.keywords):
        raise NotACall
    return made_call(_name(item.func), arguments)


def _name(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise NotACall
    return ".".join([node.id, *reversed(parts)])


def _value(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case _:
            raise NotACall


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise NotACall


def _rules(tool: Tool, rule: str) -> str:
    """Lark of one function: `rule` is the call, `rule_K` its arguments from the K-th on, `rule_tail_K` with a comma."""
    schemas, names, required = parameters_of(tool)
    lines = [f'{rule}: {json.dumps(tool.name + "(")} {rule}_0 ")"']
    for k, name in enumerate(names):
        item = f"{json.dumps(f'{name}=')} {rule}_value_{k} {rule}_tail_{k + 1}"
        is_required = name in required
        lines.append(f"{rule}_{k}: {item}" + ("" if is_required else f" | {rule}_{k + 1}"))
        lines.append(f'{rule}_tail_{k}: ", " {item}' + ("" if is_required else f" | {rule}_tail_{k + 1}"))
        lines.append(f"{rule}_value_{k}: {json_rule(shared_schemas(tool) | schemas[name])}")
    lines += [f'{rule}_{len(names)}: ""', f'{rule}_tail_{len(names)}: ""']
    return "\n".join(lines) + "\n"
