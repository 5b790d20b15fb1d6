"""Reads the fields that force an answer's form, in the names of SGLang, vLLM and OpenAI alike."""

from __future__ import annotations

import orjson

from runtime.text.grammar import choice_grammar, ebnf_grammar, json_grammar, regex_grammar, tags_grammar
from wire.errors import Refused
from wire.sampling import Grammar

from .fields import Fields
from .schema import Schema, boolean, either, mapping, one_or_list, record, shown, string

_ANY_JSON = "$$ANY$$"

FORM_FIELDS: dict[str, Schema] = {
    "json_schema": either(string(), mapping(), boolean(), text="A JSON schema, as an object or as a string of JSON."),
    "regex": string(text="A regular expression for the whole answer."),
    "ebnf": string(text="A grammar, in Lark or GBNF."),
    "structural_tag": string(text="Tags, as JSON: what stands between them must be of their schemas."),
    "structured_outputs": record(
        {
            "json": either(string(), mapping(), boolean()),
            "regex": string(),
            "choice": one_or_list(string()),
            "grammar": string(),
        },
        text="One of json, regex, choice and grammar, as in vLLM.",
    ),
}
"""What forces an answer's form, in all APIs; one of them at most."""

RESPONSE_FORMAT: dict[str, Schema] = {
    "response_format": record(
        {
            "type": string(),
            "json_schema": record({"schema": either(string(), mapping(), boolean())}),
        },
        text="type is text, json_object, json_schema or structural_tag.",
    )
}
"""OpenAI's way to force an answer's form."""


def read_grammar(fields: Fields) -> Grammar | None:
    """The grammar that `fields` ask for, if any; an empty value asks for none.

    Raises:
        Refused: several are asked for, or one is wrong.
    """
    found = [grammar for grammar in (*_own_names(fields), _structured_outputs(fields)) if grammar is not None]
    if len(found) > 1:
        raise Refused(
            f"{found[0].field} and {found[1].field} can't both force the answer's form. Send one of them.",
            field=found[1].field,
        )
    return found[0] if found else None


def read_response_format(fields: Fields) -> Grammar | None:
    """The grammar of OpenAI's `response_format`, or that of the other names.

    Raises:
        Refused: it is of an unknown type, or other names ask for a grammar too.
    """
    other = read_grammar(fields)
    form = fields.fields("response_format")
    field = fields.name("response_format")
    match form.string("type"):
        case None | "text":
            return other
        case "json_object":
            grammar = json_grammar({"type": "object"}, field=field)
        case "json_schema":
            inner = form.fields("json_schema")
            schema = inner.raw("schema")
            if schema is None:
                raise inner.wrong_type("schema", "a JSON schema", None)
            grammar = json_grammar(schema, field=inner.name("schema"))
        case "structural_tag":
            grammar = tags_grammar(orjson.dumps(form.everything()).decode(), field=field)
        case kind:
            raise Refused(
                f"{form.name('type')} must be text, json_object, json_schema or structural_tag, got {shown(kind)}."
                " Change it.",
                field=form.name("type"),
            )
    if other is not None:
        raise Refused(f"{field} and {other.field} can't both force the answer's form. Send one of them.", field=field)
    return grammar


def _own_names(fields: Fields) -> list[Grammar | None]:
    schema, field = fields.raw("json_schema"), fields.name("json_schema")
    if schema == _ANY_JSON:
        schema = {"type": "object"}
    regex, ebnf = fields.string("regex"), fields.string("ebnf")
    tags = fields.string("structural_tag")
    return [
        json_grammar(schema, field=field) if schema not in (None, "") else None,
        regex_grammar(regex, field=fields.name("regex")) if regex else None,
        ebnf_grammar(ebnf, field=fields.name("ebnf")) if ebnf else None,
        tags_grammar(tags, field=fields.name("structural_tag")) if tags else None,
    ]


def _structured_outputs(fields: Fields) -> Grammar | None:
    """vLLM's object with one of `json`, `regex`, `choice` and `grammar`."""
    inner = fields.fields("structured_outputs")
    schema, choices = inner.raw("json"), inner.strings("choice")
    regex, text = inner.string("regex"), inner.string("grammar")
    found = [
        json_grammar(schema, field=inner.name("json")) if schema is not None else None,
        regex_grammar(regex, field=inner.name("regex")) if regex else None,
        choice_grammar(choices, field=inner.name("choice")) if choices else None,
        ebnf_grammar(text, field=inner.name("grammar")) if text else None,
    ]
    given = [grammar for grammar in found if grammar is not None]
    if len(given) > 1:
        raise Refused(f"{fields.name('structured_outputs')} must hold one of json, regex, choice and grammar.")
    return given[0] if given else None
