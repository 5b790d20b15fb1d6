"""The forms that a program can force an engine's answers into: each gives `SamplingParams.grammar`.

The same forms as in HTTP requests, by the same names; what a grammar is made of stands in `text/grammar.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wire.sampling import Grammar

from .text.grammar import choice_grammar, ebnf_grammar, json_grammar, regex_grammar


def json_schema(schema: str | Mapping[str, object] | bool) -> Grammar:
    """JSON that suits `schema`, which may be given as text too.

    Raises:
        Refused: it is no schema, or a pattern in it repeats too often.
    """
    return json_grammar(dict(schema) if isinstance(schema, Mapping) else schema, field="json_schema")


def regex(pattern: str) -> Grammar:
    """Text that `pattern` matches as a whole.

    Raises:
        Refused: it repeats something too often.
    """
    return regex_grammar(pattern, field="regex")


def choice(choices: Sequence[str]) -> Grammar:
    """One of `choices`.

    Raises:
        Refused: there are none, or one is empty.
    """
    return choice_grammar([choices] if isinstance(choices, str) else choices, field="choice")


def ebnf(text: str) -> Grammar:
    """Text of a context-free grammar, written in Lark's form or as llama.cpp's GBNF.

    Raises:
        Refused: it can't be read, or repeats something too often.
    """
    return ebnf_grammar(text, field="ebnf")
