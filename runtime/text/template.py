"""The model's chat template: messages to the prompt's text, in the dialect of Jinja that model authors write.

A template may have a flaw and messages may not suit it; both end the one request with a 400. Knows no tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from wire.errors import Refused

Message = dict[str, object]

USUAL_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
"""The roles of OpenAI's API."""

_CONTINUE_MARK = "AXIL_CONTINUE_FINAL_MESSAGE "


class ChatTemplate:
    """One compiled template; `special_tokens` (`bos_token`, ...) are visible to it.

    `roles` are those that a message may have: the usual ones, and `named_roles`, which the template compares a role
    with. `variables` are the names that it reads; `reads_tools` says whether it can tell its model of tools.

    Raises:
        ValueError: the template has a syntax error.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        try:
            environment = _environment()
            self._template = environment.from_string(source)
            tree = environment.parse(source)
            self.named_roles = _named_roles(tree)
            self.roles = USUAL_ROLES | self.named_roles
            self.variables = frozenset(meta.find_undeclared_variables(tree))
            self.reads_tools = "tools" in self.variables
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the chat template has an error in line {error.lineno}: {error.message}") from error
        self._special_tokens = dict(special_tokens)

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, variables: Mapping[str, object]
    ) -> str:
        """The prompt for `messages`; `variables` are further ones that the template may read.

        Raises:
            Refused: the template does not take these messages.
        """
        given = {
            "tools": None,
            "documents": None,
            **self._special_tokens,
            **variables,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(given)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise Refused(
                f"the model's chat template does not take these messages: {error}. Change messages.", field="messages"
            ) from error
        except RecursionError as error:
            raise Refused("messages are nested too deeply for the model's chat template.", field="messages") from error

    def render_open(self, messages: Sequence[Message], *, variables: Mapping[str, object]) -> str:
        """The prompt that ends inside the last message, for the model to continue it.

        Raises:
            Refused: the template does not take these messages or alters the last one.
        """
        *earlier, last = messages
        content = last.get("content")
        if not isinstance(content, str):
            raise Refused("continue_final_message needs text in the last message's content.", field="messages")
        marked = [*earlier, {**last, "content": content + _CONTINUE_MARK}]
        text = self.render(marked, add_generation_prompt=False, variables=variables)
        head, mark, tail = text.rpartition(_CONTINUE_MARK.strip())
        if not mark:
            raise Refused(
                "the model's chat template leaves out the last message, so continue_final_message can't be used.",
                field="continue_final_message",
            )
        is_spacing_kept = tail.startswith(" ")
        return head if is_spacing_kept else head.rstrip()


def check_role(role: str, roles: Set[str], *, field: str) -> None:
    """Return when `role` is one of `roles`.

    Raises:
        Refused: it is not; names them.
    """
    if role not in roles:
        known = ", ".join(sorted(roles))
        raise Refused(f"{field} must be one of {known}, got {json.dumps(role[:100])}. Change {field}.", field=field)


def load_template(directory: Path, config: Mapping[str, object], override: str | None) -> str | None:
    """The template's source: the file `override`, else `chat_template.jinja`, else `tokenizer_config.json`'s.

    Raises:
        ValueError: `override` can't be read.
    """
    if override is not None:
        try:
            return Path(override).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--chat-template {override} can't be read: {error}") from error
    beside = directory / "chat_template.jinja"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _named_roles(template: nodes.Template) -> frozenset[str]:
    """The strings that a template compares a message's role with."""
    comparisons = [compare for compare in template.find_all(nodes.Compare) if _has_role(compare)]
    constants = [constant.value for compare in comparisons for constant in _outside_of_subscripts(compare)]
    return frozenset(value for value in constants if isinstance(value, str))


def _has_role(compare: nodes.Compare) -> bool:
    names = (item.name for item in compare.find_all(nodes.Name))
    attributes = (item.attr for item in compare.find_all(nodes.Getattr))
    keys = (item.arg.value for item in compare.find_all(nodes.Getitem) if isinstance(item.arg, nodes.Const))
    return "role" in {*names, *attributes, *keys}


def _outside_of_subscripts(node: nodes.Node) -> Iterator[nodes.Const]:
    if isinstance(node, nodes.Const):
        yield node
    elif not isinstance(node, nodes.Getitem):
        for child in node.iter_child_nodes():
            yield from _outside_of_subscripts(child)


class _GenerationBlocks(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here its content is just content."""

    tags = {"generation"}  # noqa: RUF012  (jinja's own declaration has this type)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def template_variables(value: Mapping[str, object]) -> dict[str, object]:
    """A request's own variables, without those that the server sets.

    Raises:
        Refused: one of them is the server's.
    """
    for name in ("messages", "add_generation_prompt", "tools", "documents"):
        if name in value:
            raise Refused(f"chat_template_kwargs may not set {name}. Remove it.", field="chat_template_kwargs")
    return dict(value)
