from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.text import grammar
from runtime.text.grammar import (
    GrammarTrial,
    choice_grammar,
    ebnf_grammar,
    json_grammar,
    regex_grammar,
    tags_grammar,
)
from runtime.text.tokenizer import ModelFiles, Tokenizer
from tests.deadline import DEADLINE_S
from tests.fakes import END_OF_TURN, EOS, byte_tokenizer, write_model_dir
from wire.errors import Overloaded, Refused
from wire.sampling import Grammar


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("model")
    write_model_dir(directory)
    return Tokenizer.load(directory)


@pytest.fixture
def trial(tokenizer: Tokenizer) -> GrammarTrial:
    return GrammarTrial(tokenizer)


@pytest.mark.parametrize(
    "made",
    [
        lambda: json_grammar({"type": "object"}, field="f"),
        lambda: json_grammar('{"type": "string", "pattern": "^a+$"}', field="f"),
        lambda: json_grammar(True, field="f"),
        lambda: regex_grammar(r"\d+", field="f"),
        lambda: ebnf_grammar('root ::= "a"', field="f"),
        lambda: ebnf_grammar('start: "a"', field="f"),
        lambda: choice_grammar(['a "quoted" one', "b\n"], field="f"),
        lambda: tags_grammar('{"structures": [{"begin": "<f>", "end": "</f>"}], "triggers": ["<f"]}', field="f"),
    ],
)
async def test_each_form_passes_its_trial_and_learns_the_ends(trial: GrammarTrial, made: Callable[[], Grammar]) -> None:
    assert set((await trial.tried(made())).eos_token_ids) == {EOS, END_OF_TURN}


async def test_a_grammar_may_name_a_special_token_and_is_told_where_there_is_none(trial: GrammarTrial) -> None:
    await trial.tried(ebnf_grammar('start: "a" <|end|> "<|end|>" /<s>/ <[257]>', field="f"))
    with pytest.raises(Refused, match=r'unknown special token: "<\|edn\|>"'):
        await trial.tried(ebnf_grammar('start: "a" <|edn|>', field="f"))


def _deep(depth: int) -> str:
    """A schema that holds lists in lists."""
    return '{"enum": ' + "[" * depth + "]" * depth + "}"


@pytest.mark.parametrize(
    ("made", "part"),
    [
        (lambda: json_grammar("{", field="f"), "no JSON"),
        (lambda: json_grammar([], field="f"), "an object"),
        (lambda: json_grammar("7", field="f"), "an object"),
        (lambda: json_grammar(_deep(200), field="f"), "less deeply"),
        (lambda: json_grammar(_deep(900), field="f"), "less deeply"),
        (lambda: json_grammar(_deep(9000), field="f"), "depth"),
        (lambda: json_grammar({"type": "string", "pattern": "(a{1000}){1000}"}, field="f"), "1,000 times"),
        (lambda: regex_grammar("(a{100}){100}", field="f"), "1,000 times"),
        (lambda: ebnf_grammar("start: /(a{1000}){1000}/", field="f"), "1,000 times"),
        (lambda: ebnf_grammar('start: ("a"{100}){100}', field="f"), "1,000 times"),
        (lambda: regex_grammar("a" * 300_000, field="f"), "262,144"),
        (lambda: choice_grammar([], field="f"), "at least one"),
        (lambda: choice_grammar(["a", ""], field="f"), "empty"),
        (lambda: tags_grammar("{}", field="f"), "structures"),
        (lambda: tags_grammar("x", field="f"), "structures"),
        (lambda: tags_grammar(_deep(9000), field="f"), "structures"),
        (lambda: tags_grammar('{"structures": [{"schema": ' + _deep(9000), field="f"), "depth"),
        (lambda: tags_grammar('{"structures": [], "triggers": []}', field="f"), "at least one"),
        (lambda: tags_grammar('{"structures": [{"begin": "<f>", "end": ""}], "triggers": ["<g"]}', field="f"), "begin"),
    ],
)
def test_what_can_be_seen_to_be_wrong_is_refused_at_once(made: Callable[[], Grammar], part: str) -> None:
    with pytest.raises(Refused, match=part) as caught:
        made()
    assert caught.value.field == "f"


@pytest.mark.parametrize(
    "made",
    [
        lambda: regex_grammar("((", field="f"),
        lambda: json_grammar({"type": "strnig"}, field="f"),
        lambda: json_grammar({"$ref": "#/nowhere"}, field="f"),
        lambda: json_grammar({"type": "array", "uniqueItems": True}, field="f"),
        lambda: ebnf_grammar("start: nothing", field="f"),
        lambda: json_grammar(False, field="f"),
    ],
)
async def test_what_llguidance_does_not_take_is_refused_in_its_words(
    trial: GrammarTrial, made: Callable[[], Grammar]
) -> None:
    for _ in range(2):
        with pytest.raises(Refused, match=r"can't be followed: .+") as caught:
            await trial.tried(made())
        assert caught.value.field == "f"


@pytest.mark.parametrize(
    "made",
    [
        lambda: regex_grammar("a((b", field="f"),
        lambda: json_grammar({"type": "string", "pattern": "a((b"}, field="f"),
    ],
)
async def test_a_wrong_pattern_is_told_in_one_sentence(trial: GrammarTrial, made: Callable[[], Grammar]) -> None:
    with pytest.raises(Refused) as caught:
        await trial.tried(made())
    assert caught.value.message == "f can't be followed: error in the pattern: unclosed group. Mend or simplify it."


async def test_a_schema_nested_too_deeply_is_refused(trial: GrammarTrial) -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(2000):
        schema = {"type": "object", "properties": {"p": schema}}
    with pytest.raises(Refused):
        await trial.tried(json_grammar(schema, field="f"))


async def test_many_requests_at_once_wait_for_their_trials_and_the_same_grammar_is_tried_once(
    trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def note(_: object, source: str) -> str:
        tried.append(source)
        return ""

    monkeypatch.setattr(grammar, "_try", note)
    wanted = [regex_grammar(f"a{i % 12}", field="f") for i in range(60)]
    await asyncio.gather(*map(trial.tried, wanted))
    assert sorted(tried) == sorted({each.source for each in wanted})


async def test_a_trial_that_takes_too_long_is_refused_and_others_are_told_to_come_back(
    trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(grammar, "TRIAL_S", 0.05)
    monkeypatch.setattr(grammar, "_try", lambda tokenizer, source: str(released.wait(DEADLINE_S)))
    slow = [trial.tried(regex_grammar(f"a{i}", field="f")) for i in range(4)]
    ended = await asyncio.gather(*slow, return_exceptions=True)
    assert all(isinstance(error, Refused) and "more than 0.05 s" in error.message for error in ended)
    with pytest.raises(Overloaded):
        await trial.tried(regex_grammar("b", field="f"))
    released.set()


async def test_a_trial_that_took_too_long_on_a_busy_machine_counts_once_it_has_ended(
    trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(grammar, "TRIAL_S", 0.05)
    monkeypatch.setattr(grammar, "_try", lambda tokenizer, source: "" if released.wait(30) else "never released")
    slow = regex_grammar("a", field="f")
    for _ in range(2):
        with pytest.raises(Refused, match=r"more than 0\.05 s"):
            await trial.tried(slow)
    released.set()
    async with asyncio.timeout(30):
        while True:
            try:
                assert (await trial.tried(slow)).source == slow.source
            except Refused:
                await asyncio.sleep(0.01)  # until the thread has told
            else:
                return


async def test_a_grammar_that_takes_much_work_is_refused(trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MOST_CPU_S", 0.0)
    with pytest.raises(Refused, match="s of work, and at most 0 s are allowed"):
        await trial.tried(regex_grammar("a", field="f"))


def test_a_schema_of_a_program_may_be_nested_however_deeply_without_harm() -> None:
    schema: dict[str, object] = {}
    for _ in range(5000):
        schema = {"not": schema}
    with pytest.raises(Refused, match="Nest it less deeply"):
        json_grammar(schema, field="f")


@pytest.mark.parametrize(
    "made",
    [
        lambda text: json_grammar(f'{{"pattern": "{text}"}}', field="f"),
        lambda text: json_grammar({"pattern": text}, field="f"),
        lambda text: regex_grammar(text, field="f"),
        lambda text: ebnf_grammar(f'root ::= "{text}"', field="f"),
        lambda text: choice_grammar([text], field="f"),
        lambda text: tags_grammar(
            json.dumps({"structures": [{"begin": text, "end": "</f>"}], "triggers": ["a"]}), field="f"
        ),
    ],
)
def test_what_is_too_long_is_refused_before_it_is_read(
    made: Callable[[str], Grammar], monkeypatch: pytest.MonkeyPatch
) -> None:
    made("a" * 100)
    for name in ("_most_repetitions", "any_to_lark"):
        monkeypatch.delattr(grammar, name)
    with pytest.raises(Refused, match="at most 262,144 are allowed"):
        made("a" * 300_000)


_PATTERNS = st.recursive(
    st.sampled_from(["a", "\\{", "\\d", "[a{2000}]", "[]{2000}]", "[^]{2000}]", "{", ".", "a{2"]),
    lambda inner: st.one_of(
        st.builds("({})".format, inner),
        st.builds(
            "(?:{}){}".format, inner, st.sampled_from(["{1000}", "{33}", "{2,31}", "{3,}", "*", "+", "?", "{0}"])
        ),
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map("|".join),
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(pattern=_PATTERNS)
def test_repetitions_are_counted_as_re2_counts_them(pattern: str) -> None:
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
        is_too_often = False
    except re2.error as error:
        is_too_often = b"repetition size" in error.args[0]
    assert is_too_often == (grammar._most_repetitions(pattern) > grammar.MAX_REPETITIONS)


async def test_a_grammar_is_tried_once(trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def note(_: object, source: str) -> str:
        tried.append(source)
        return ""

    monkeypatch.setattr(grammar, "_try", note)
    for _ in range(3):
        await trial.tried(regex_grammar("abc", field="f"))
    assert len(tried) == 1


async def test_a_model_without_an_end_token_takes_no_grammar() -> None:
    endless = Tokenizer(byte_tokenizer(), ModelFiles(tokenizer_config={}, model_config={}, generation_config={}))
    trial = GrammarTrial(endless)
    trial.prepare()
    with pytest.raises(Refused, match="no end-of-sequence token"):
        await trial.tried(regex_grammar("a", field="f"))
