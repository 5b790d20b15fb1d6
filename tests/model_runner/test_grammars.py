from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_runner.grammars import GrammarRules
from runtime.text.grammar import choice_grammar, ebnf_grammar, json_grammar, regex_grammar, tags_grammar
from tests.fakes import END_OF_TURN, EOS, byte_tokenizer
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission
from wire.sampling import Grammar, SamplingParams

VOCABULARY = 300
"""More than the tokenizer's 259, as models often have."""

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_tokenizer().save(str(path))
    return path


@pytest.fixture(scope="module")
def rules(tokenizer: Path) -> GrammarRules:
    return GrammarRules(vocabulary=VOCABULARY, tokenizer=tokenizer)


def _admission(grammar: Grammar | None, *, row: int = 0, output_ids: list[int] | None = None) -> Admission:
    if grammar is not None:
        grammar = Grammar(source=grammar.source, field=grammar.field, eos_token_ids=(EOS, END_OF_TURN))
    return Admission(
        row=row,
        request_id="r",
        sampling=SamplingParams(grammar=grammar),
        num_cached_tokens=0,
        page_ids=b"",
        output_ids=ids_to_bytes(output_ids or []),
    )


def _answer(rules: GrammarRules, grammar: Grammar, seed: int, most: int = 400) -> str:
    """The text that a model without any sense gives under a grammar."""
    random = torch.Generator().manual_seed(seed)
    rules.admit(_admission(grammar))
    ids: list[int] = []
    try:
        for _ in range(most):
            logits, failures = rules.applied(torch.randn(1, VOCABULARY, generator=random), [0])
            assert failures == {}
            token_id = int(logits.argmax())
            rules.note([0], np.array([token_id], np.int32))
            if token_id in (EOS, END_OF_TURN):
                return bytes(ids).decode()
            ids.append(token_id)
    finally:
        rules.release(0)
    raise AssertionError(f"no end after {bytes(ids)!r}")


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_whatever_the_model_says_the_answer_suits_the_schema(rules: GrammarRules, seed: int) -> None:
    person = json.loads(_answer(rules, json_grammar(PERSON, field="json_schema"), seed))
    assert {"name", "age"} <= person.keys() <= {"name", "age", "tags"}
    assert len(person["name"]) <= 8
    assert 0 <= person["age"] <= 150
    assert set(person.get("tags", [])) <= {"a", "b"}


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_the_answer_matches_the_regex_as_a_whole(rules: GrammarRules, seed: int) -> None:
    pattern = r"[0-9]{3}-(ab|cd){1,4}"
    assert re.fullmatch(pattern, _answer(rules, regex_grammar(pattern, field="regex"), seed))


def test_other_forms_are_followed_too(rules: GrammarRules) -> None:
    assert _answer(rules, choice_grammar(["yes", "no"], field="choice"), 1) in ("yes", "no")
    assert _answer(rules, ebnf_grammar('root ::= "a" ("b" | "c")', field="ebnf"), 1) in ("ab", "ac")
    assert _answer(rules, ebnf_grammar('start: "x" /[0-9]{2}/', field="ebnf"), 1)[0] == "x"


def test_a_tag_forces_the_structure_that_it_begins(rules: GrammarRules) -> None:
    structure = {"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}
    grammar = tags_grammar(json.dumps({"structures": [structure], "triggers": ["<f"]}), field="structural_tag")
    rules.admit(_admission(grammar))
    rules.note([0] * 5, np.array([*b"hi<f>"], np.int32))
    logits, _ = rules.applied(torch.zeros(1, VOCABULARY), [0])
    allowed = {chr(i) for i in torch.isfinite(logits[0]).nonzero().flatten().tolist()}
    assert "7" in allowed
    assert "x" not in allowed
    rules.release(0)


def test_a_row_without_a_grammar_keeps_its_logits(rules: GrammarRules) -> None:
    logits_BV = torch.randn(2, VOCABULARY)
    rules.admit(_admission(None, row=0))
    assert rules.applied(logits_BV, [0, 1])[0] is logits_BV
    rules.admit(_admission(regex_grammar("a", field="regex"), row=1))
    changed_BV, _ = rules.applied(logits_BV, [0, 1])
    assert torch.equal(changed_BV[0], logits_BV[0])
    assert changed_BV[1].isfinite().nonzero().flatten().tolist() == [ord("a")]
    rules.release(0)
    rules.release(1)


def test_a_resumed_row_goes_on_where_its_output_ends(rules: GrammarRules) -> None:
    rules.admit(_admission(regex_grammar("abc", field="regex"), output_ids=[*b"ab"]))
    logits_BV, _ = rules.applied(torch.zeros(1, VOCABULARY), [0])
    assert logits_BV[0].isfinite().nonzero().flatten().tolist() == [ord("c")]
    rules.release(0)


def test_the_step_behind_the_end_does_no_harm(rules: GrammarRules) -> None:
    rules.admit(_admission(regex_grammar("a", field="regex")))
    for token_id in (ord("a"), EOS):
        _, failures = rules.applied(torch.zeros(1, VOCABULARY), [0])
        assert failures == {}
        rules.note([0], np.array([token_id], np.int32))
    rules.applied(torch.zeros(1, VOCABULARY), [0])
    rules.note([0], np.array([7], np.int32))
    rules.release(0)


def test_a_row_that_left_its_grammar_is_told_why(rules: GrammarRules) -> None:
    rules.admit(_admission(regex_grammar("abc", field="regex"), output_ids=[*b"xyz"]))
    _, failures = rules.applied(torch.zeros(1, VOCABULARY), [0])
    assert "grammar" in failures[0]
    rules.release(0)
