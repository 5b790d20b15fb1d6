"""The tools of a request, in whichever API's words, as the chat template takes them and as the answer may call them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from runtime.text.tool_calls.form import Tool
from wire.errors import Refused

from .fields import Fields
from .schema import Schema, anything, boolean, list_of, mapping, record, shown, string

MAX_TOOLS = 1024

_NAMESPACE = "namespace"

_FUNCTION = {
    "name": string(longest=256),
    "description": string(),
    "parameters": mapping(text="A JSON schema."),
    "strict": boolean(),
}

CHAT_TOOL_FIELDS: dict[str, Schema] = {
    "tools": list_of(
        record({"type": string(), "function": record(_FUNCTION)}), most=MAX_TOOLS, text="Functions that may be called."
    ),
    "tool_choice": anything(text="none, auto, required, or the one function to call."),
    "parallel_tool_calls": boolean(text="Whether several calls may come at once. Default true."),
}
"""Tools, in the words of chat completions."""

FLAT_TOOL_FIELDS: dict[str, Schema] = {
    **CHAT_TOOL_FIELDS,
    "tools": list_of(
        record({"type": string(), **_FUNCTION, "tools": list_of(record({"type": string(), **_FUNCTION}))}),
        most=MAX_TOOLS,
        text="Functions that may be called, and namespaces, which hold such in tools.",
    ),
}
"""Tools, in the words of responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWish:
    """`shown` are all tools, as templates take them; `callable` those that an answer may call, or must.

    `spaces` has the namespace and the name in it of each tool that is in one.
    """

    shown: tuple[dict[str, object], ...] = ()
    callable: tuple[Tool, ...] = ()
    choice: Literal["none", "auto", "required"] = "auto"
    is_single: bool = False
    spaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def allowed(self) -> tuple[Tool, ...]:
        """The tools that an answer may call."""
        return () if self.choice == "none" else self.callable

    def only(self, names: Sequence[str], *, field: str) -> ToolWish:
        """This wish with no other tools to be called than `names`.

        Raises:
            Refused: one of them is not among the tools.
        """
        known = {tool.name: tool for tool in self.callable}
        for name in names:
            if name not in known:
                raise Refused(f"{field} names {shown(name)}, which is not among tools. Add it there.", field=field)
        return replace(self, callable=tuple(known[name] for name in dict.fromkeys(names)))


def made_wish(functions: Sequence[dict[str, object]], *, is_single: bool) -> ToolWish:
    """The wish to call any of `functions` (name, description, parameters), or none.

    Raises:
        Refused: two have one name.
    """
    names = [str(function["name"]) for function in functions]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise Refused(f"tools has {shown(twice)} twice. Give each tool a name of its own.", field="tools")
    tools = []
    for function in functions:
        parameters = function["parameters"]
        tools.append(Tool(name=str(function["name"]), parameters=parameters if isinstance(parameters, dict) else {}))
    return ToolWish(
        shown=tuple({"type": "function", "function": function} for function in functions),
        callable=tuple(tools),
        is_single=is_single,
    )


def read_chat_tools(fields: Fields) -> ToolWish:
    """The tools of chat completions.

    Raises:
        Refused: a tool is no function, or the choice is none.
    """
    return _chosen(fields, read_tools(fields, is_single=not fields.boolean("parallel_tool_calls", True)))


def read_tools(fields: Fields, *, is_single: bool = False) -> ToolWish:
    """The tools of chat completions, any of which may be called.

    Raises:
        Refused: a tool is no function.
    """
    functions = []
    for item in fields.items("tools"):
        _check_kind(item)
        functions.append(_read_function(item.fields("function")))
    return made_wish(functions, is_single=is_single)


def read_flat_tools(fields: Fields, added: Sequence[Fields] = ()) -> ToolWish:
    """The functions of responses, which are not nested, and those of namespaces; `added` bring more of them.

    Other kinds of tools are left out: agents send along those of OpenAI's own servers, and can't all switch them off.

    Raises:
        Refused: a function has no name, or the choice is none.
    """
    functions = [*_flat_functions(fields)]
    for more in added:
        known = {function["name"] for function, _ in functions}
        functions += [each for each in _flat_functions(more) if each[0]["name"] not in known]
    wish = made_wish([each for each, _ in functions], is_single=not fields.boolean("parallel_tool_calls", True))
    return _chosen(fields, replace(wish, spaces={str(each["name"]): space for each, space in functions if space}))


def _flat_functions(fields: Fields) -> Iterator[tuple[dict[str, object], tuple[str, str] | None]]:
    """The functions in `tools`, each under the one name that the model sees; and its namespace and name there."""
    for item in fields.items("tools"):
        kind = item.string("type")
        if is_function(kind):
            yield _read_function(item), None
        elif kind == _NAMESPACE:
            space = item.string("name") or ""
            for inner in item.items("tools"):
                if is_function(inner.string("type")):
                    function = _read_function(inner)
                    name = str(function["name"])
                    yield function | {"name": flat_name(space, name)}, (space, name)


def flat_name(space: str, name: str) -> str:
    """What the model calls a function of a namespace."""
    return f"{space}{name}" if not space or space.endswith("_") else f"{space}__{name}"


def is_function(kind: object) -> bool:
    """Whether a tool of that type, in responses, is one that an answer may call here; None stands for a function."""
    return kind in (None, "function")


def offered(tools: object) -> list[object]:
    """Those of a request's tools, in responses, that the answer may call."""
    found: list[object] = []
    for tool in tools if isinstance(tools, list) else []:
        if is_function(tool.get("type")):
            found.append(tool)
        elif tool.get("type") == _NAMESPACE and (inner := offered(tool.get("tools"))):
            found.append({**tool, "tools": inner})
    return found


def _check_kind(item: Fields) -> None:
    kind = item.string("type")
    if kind != "function":
        name = item.name("type")
        raise Refused(
            f"{name} must be function, got {shown(kind)}: this server has no tools of its own. Leave it out.",
            field=name,
        )


def _read_function(item: Fields) -> dict[str, object]:
    name = item.string("name")
    if not name:
        raise Refused(f"{item.name('name')} is missing. Name the function.", field=item.name("name"))
    item.boolean("strict", False)  # what is forced is forced wholly
    return {
        "name": name,
        "description": item.string("description") or "",
        "parameters": item.mapping("parameters") or {"type": "object", "properties": {}},
    }


def _chosen(fields: Fields, wish: ToolWish) -> ToolWish:
    """The wish with the request's `tool_choice`; both APIs' ways to name a function are understood."""
    choice = fields.raw("tool_choice")
    match choice:
        case None | "auto":
            return wish
        case "none":
            return replace(wish, choice="none")
        case "required":
            return replace(_some(wish), choice="required")
        case {"type": "function", "function": {"name": str() as name}} | {"type": "function", "name": str() as name}:
            return replace(wish.only([name], field="tool_choice"), choice="required", is_single=True)
        case {"type": "allowed_tools", "allowed_tools": dict() as nested}:
            return _allowed(nested, wish)
        case {"type": "allowed_tools"}:
            return _allowed(fields.mapping("tool_choice"), wish)
        case _:
            raise fields.wrong_type("tool_choice", "none, auto, required or an object that names a function", choice)


def _allowed(choice: Mapping[str, object] | Mapping[object, object], wish: ToolWish) -> ToolWish:
    tools = choice.get("tools")
    names = []
    for tool in tools if isinstance(tools, list) else []:
        match tool:
            case {"function": {"name": str() as name}} | {"name": str() as name}:
                names.append(name)
            case _:
                raise Refused(f"tool_choice.tools must name functions, got {shown(tool)}.", field="tool_choice")
    only = wish.only(names, field="tool_choice")
    return replace(_some(only), choice="required") if choice.get("mode") == "required" else only


def _some(wish: ToolWish) -> ToolWish:
    if not wish.callable:
        raise Refused("tool_choice asks for a call, but tools is empty. Send tools.", field="tool_choice")
    return wish
