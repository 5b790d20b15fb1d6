from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_runner.grammars import GrammarRules
from runtime.model_files import tokenizer_files
from runtime.text.grammar import choice_grammar, ebnf_grammar, json_grammar, regex_grammar, tags_grammar
from tests.fakes import BOS, END_OF_TURN, EOS, byte_tokenizer
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


def _admission(
    grammar: Grammar | None,
    *,
    row: int = 0,
    output_ids: list[int] | None = None,
    eos_token_ids: tuple[int, ...] = (EOS, END_OF_TURN),
    **more: int,
) -> Admission:
    if grammar is not None:
        grammar = Grammar(source=grammar.source, field=grammar.field, eos_token_ids=eos_token_ids)
    return Admission(
        row=row,
        request_id="r",
        sampling=SamplingParams(grammar=grammar, **more),
        num_cached_tokens=0,
        page_ids=b"",
        output_ids=ids_to_bytes(output_ids or []),
    )


def _note(rules: GrammarRules, token_id: int, position: int, *, row: int = 0) -> list[int]:
    """Say that a row's token was chosen; gives those that must follow it, none where it was forced itself."""
    if not rules.open_places([row], np.array([position])):
        return []
    return rules.note([row], np.array([token_id], np.int32), np.array([position])).get(row, [])


def _answer(rules: GrammarRules, grammar: Grammar, seed: int, most: int = 400) -> str:
    """The text that a model without any sense gives under a grammar."""
    random = torch.Generator().manual_seed(seed)
    rules.admit(_admission(grammar))
    ids: list[int] = []
    try:
        for position in range(most):
            logits, failures = rules.applied(torch.randn(1, VOCABULARY, generator=random), [0], np.array([position]))
            assert failures == {}
            token_id = int(logits.argmax())
            _note(rules, token_id, position)
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


@pytest.mark.parametrize("special", ["</s>", "<|end|>"])
@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (lambda text: regex_grammar(re.escape(text), field="f"), "{}"),
        (lambda text: regex_grammar("".join(f"\\x{ord(c):02x}" for c in text) + "[a]", field="f"), "{}a"),
        (lambda text: regex_grammar(f"a[<]{{1}}{re.escape(text[1:])}", field="f"), "a{}"),
        (lambda text: json_grammar({"const": f"a{text}"}, field="f"), '"a{}"'),
        (lambda text: json_grammar({"enum": [text, f"{text}{text}"]}, field="f"), '"{}"|"{}{}"'),
        (
            lambda text: json_grammar({"type": "string", "pattern": f"^\\u003c{re.escape(text[1:])}$"}, field="f"),
            '"{}"',
        ),
        (lambda text: ebnf_grammar(f'root ::= "a" "\\x3c" "{text[1:]}"', field="f"), "a{}"),
        (lambda text: ebnf_grammar(f'start: "\\u003c{text[1:]}b"', field="f"), "{}b"),
        (lambda text: choice_grammar([f"yes{text}", f"no{text}"], field="f"), "yes{}|no{}"),
    ],
)
def test_text_that_spells_a_special_token_is_text(
    rules: GrammarRules, made: Callable[[str], Grammar], wanted: str, special: str
) -> None:
    answer = _answer(rules, made(special), 1)
    assert answer in [each.replace("{}", special) for each in wanted.split("|")], answer


def test_a_grammar_may_ask_for_a_special_token_by_its_name(rules: GrammarRules) -> None:
    rules.admit(_admission(ebnf_grammar('start: "a" <s> "b"', field="ebnf"), output_ids=[ord("a")]))
    logits, _ = rules.applied(torch.zeros(1, VOCABULARY), [0], np.array([1]))
    assert logits[0].isfinite().nonzero().flatten().tolist() == [BOS]
    rules.release(0)


def test_a_tag_forces_the_structure_that_it_begins(rules: GrammarRules) -> None:
    structure = {"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}
    grammar = tags_grammar(json.dumps({"structures": [structure], "triggers": ["<f"]}), field="structural_tag")
    rules.admit(_admission(grammar))
    for position, token_id in enumerate(b"hi<f>"):
        _note(rules, token_id, position)
    logits, _ = rules.applied(torch.zeros(1, VOCABULARY), [0], np.array([5]))
    allowed = {chr(i) for i in torch.isfinite(logits[0]).nonzero().flatten().tolist()}
    assert "7" in allowed
    assert "x" not in allowed
    rules.release(0)


def test_a_row_without_a_grammar_keeps_its_logits(rules: GrammarRules) -> None:
    logits_BV = torch.randn(2, VOCABULARY)
    rules.admit(_admission(None, row=0))
    assert rules.applied(logits_BV, [0, 1], np.array([3, 0]))[0] is logits_BV
    rules.admit(_admission(regex_grammar("a", field="regex"), row=1))
    changed_BV, _ = rules.applied(logits_BV, [0, 1], np.array([3, 0]))
    assert torch.equal(changed_BV[0], logits_BV[0])
    assert changed_BV[1].isfinite().nonzero().flatten().tolist() == [ord("a")]
    rules.release(0)
    rules.release(1)


def test_a_resumed_row_goes_on_where_its_output_ends(rules: GrammarRules) -> None:
    rules.admit(_admission(regex_grammar("abc", field="regex"), output_ids=[*b"ab"]))
    logits_BV, _ = rules.applied(torch.zeros(1, VOCABULARY), [0], np.array([2]))
    assert logits_BV[0].isfinite().nonzero().flatten().tolist() == [ord("c")]
    rules.release(0)


def test_the_step_behind_the_end_does_no_harm(rules: GrammarRules) -> None:
    rules.admit(_admission(regex_grammar("a", field="regex")))
    for position, token_id in enumerate((ord("a"), EOS)):
        _, failures = rules.applied(torch.zeros(1, VOCABULARY), [0], np.array([position]))
        assert failures == {}
        _note(rules, token_id, position)
    rules.applied(torch.zeros(1, VOCABULARY), [0], np.array([2]))
    _note(rules, 7, 2)
    rules.release(0)


def test_a_row_that_left_its_grammar_is_told_why(rules: GrammarRules) -> None:
    rules.admit(_admission(regex_grammar("abc", field="regex"), output_ids=[*b"xyz"]))
    _, failures = rules.applied(torch.zeros(1, VOCABULARY), [0], np.array([3]))
    assert "grammar" in failures[0]
    rules.release(0)


REAL_EOS = 2
"""The embedded model's end of a turn."""

FORMS = {
    "schema": json_grammar(PERSON, field="f"),
    "long names": json_grammar(
        {
            "type": "object",
            "properties": {"a_rather_long_name": {"type": "null"}, "another_long_name": {"const": "a fixed value"}},
            "required": ["a_rather_long_name", "another_long_name"],
            "additionalProperties": False,
        },
        field="f",
    ),
    "any JSON": json_grammar({}, field="f"),
    "regex": regex_grammar(r"The quick brown (fox|dog) jumps over [0-9]{2} lazy dogs\.", field="f"),
    "choice": choice_grammar(["yes, by all means", "yes, but", "no, not at all", "überhaupt nicht 🙂"], field="f"),
    "lark": ebnf_grammar('start: "begin the list" (" item " /[a-c]/)+ " end the list"', field="f"),
}


@pytest.fixture(scope="module")
def merging_rules() -> GrammarRules:
    """With the embedded model's tokenizer, whose tokens are words and pieces of them."""
    directory, _ = tokenizer_files(None)
    return GrammarRules(vocabulary=49152, tokenizer=directory / "tokenizer.json")


def _walk(
    rules: GrammarRules, grammar: Grammar, seed: int, *, most: int = 60, **sampling: int
) -> tuple[list[int], int]:
    """What comes of random logits that depend on the position only, and how many tokens were known before their turn.

    As the scheduler has it: the token behind the first of forced ones is asked for nevertheless.
    """
    rules.admit(_admission(grammar, eos_token_ids=(REAL_EOS,), **sampling))
    ids: list[int] = []
    known: list[int] = []
    num_known = 0
    while len(ids) < most and (not ids or ids[-1] != REAL_EOS):
        position = len(ids)
        logits = torch.randn(1, 49152, generator=torch.Generator().manual_seed(seed + position))
        logits[:, REAL_EOS] += 3.0
        changed, failures = rules.applied(logits, [0], np.array([position]))
        assert not failures
        ids.append(int(changed.argmax()))
        if known:
            # The step that was planned before they were known gives the first of them; the next is their chunk's.
            assert ids[-1] == known[0]
            assert rules.open_places([0], np.array([position])) == []
            ids += known[1:]
            known = []
            continue
        assert rules.open_places([0], np.array([position])) == [0]
        known = _note(rules, ids[-1], position)
        num_known += len(known)
    rules.release(0)
    return ids[:most], num_known


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), name=st.sampled_from([*FORMS]))
def test_forced_tokens_are_those_that_would_have_come_one_by_one(
    merging_rules: GrammarRules, seed: int, name: str
) -> None:
    together, num_known = _walk(merging_rules, FORMS[name], seed)
    one_by_one, none_known = _walk(merging_rules, FORMS[name], seed, num_top_logprobs=0)
    assert together == one_by_one
    assert none_known == 0
    assert num_known > 0 or name in ("any JSON", "schema")


def test_forced_tokens_are_given_one_by_one_to_who_asks_for_each(merging_rules: GrammarRules) -> None:
    merging_rules.admit(_admission(FORMS["regex"], eos_token_ids=(REAL_EOS,)))
    logits, _ = merging_rules.applied(torch.randn(1, 49152), [0], np.array([7]))
    forced = _note(merging_rules, int(logits.argmax()), 7)
    assert len(forced) >= 2
    for position, token_id in enumerate(forced, start=8):
        logits, failures = merging_rules.applied(torch.randn(1, 49152), [0], np.array([position]))
        assert not failures
        assert logits[0].isfinite().nonzero().flatten().tolist() == [token_id]
        assert merging_rules.open_places([0, 5], np.array([position, 0])) == [1]
    assert merging_rules.open_places([0], np.array([8 + len(forced)])) == [0]
    merging_rules.release(0)


def test_nothing_is_forced_where_each_token_needs_its_own_step_for_its_logprob(rules: GrammarRules) -> None:
    rules.admit(_admission(regex_grammar("abcdef", field="f"), num_top_logprobs=0))
    assert _note(rules, ord("a"), 0) == []
    rules.release(0)
    rules.admit(_admission(regex_grammar("abcdef", field="f")))
    assert _note(rules, ord("a"), 0) == [*b"bcdef"]
    rules.release(0)
