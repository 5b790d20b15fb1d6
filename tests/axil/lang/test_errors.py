"""A call that fails: where that is raised, what it says, and what it doesn't touch."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from axil.lang.backend import Prompt
from axil.lang.context import use_backend
from axil.lang.errors import ProgramError, WrongUse
from axil.lang.expressions import gen
from axil.lang.program import function
from axil.lang.state import State
from tests.axil.lang.scripted import Scripted


def fail_on_boom(prompt: Prompt) -> str:
    if "boom" in prompt.key:
        raise ValueError("no such luck")
    return "ok"


@function
def two_calls(s: State, word: str) -> str:
    s += word + gen("first")
    s += gen("second")
    return str(s["first"]) + str(s["second"])


def test_an_error_is_raised_where_the_value_is_used_and_names_the_calls_line(backend: Scripted) -> None:
    backend.answer = fail_on_boom
    with pytest.raises(ProgramError, match=r"gen\('first'\) at .*test_errors\.py:\d+ in two_calls") as caught:
        two_calls.using(backend=backend).run("boom")
    assert isinstance(caught.value.__cause__, ValueError)
    assert "two_calls" in [entry.name for entry in caught.traceback]


def test_an_error_that_is_met_again_tells_only_of_the_line_that_meets_it(backend: Scripted) -> None:
    backend.answer = fail_on_boom

    @function
    def stubborn(s: State) -> str:
        s += "boom" + gen("x")
        try:
            s["x"]
        except ProgramError as error:
            first.append(error)
        return str(s["x"])

    def own_lines(error: BaseException) -> list[str]:
        lines = [entry.line or "" for entry in traceback.extract_tb(error.__traceback__)]
        return [line for line in lines if '["x"]' in line or ".value" in line]

    first: list[ProgramError] = []
    with pytest.raises(ProgramError) as caught:
        stubborn.using(backend=backend).run()
    assert own_lines(first[0]) == ['s["x"]']
    assert own_lines(caught.value) == ['return str(s["x"])']
    result = stubborn.using(backend=backend).run_batch([{}])[0]
    for _ in range(2):
        with pytest.raises(ProgramError) as caught:
            result["x"]
        assert own_lines(caught.value) == ['result["x"]']
        with pytest.raises(ProgramError) as caught:
            result.value  # noqa: B018 - raises
        assert own_lines(caught.value) == [
            "result.value  # noqa: B018 - raises",
            'return str(s["x"])',
        ]


def test_a_program_may_catch_an_error_and_go_on_elsewhere(backend: Scripted) -> None:
    backend.answer = fail_on_boom

    @function
    def careful(s: State) -> str:
        (risky,) = s.fork()
        risky += "boom" + gen("x")
        try:
            return str(risky["x"])
        except ProgramError:
            s += "else" + gen("y")
            return str(s["y"])

    assert careful.using(backend=backend).run().value == "ok"


def test_an_error_that_nobody_looked_at_is_raised_at_the_end(backend: Scripted) -> None:
    backend.answer = fail_on_boom

    @function
    def careless(s: State) -> None:
        s += "boom" + gen("x")

    with pytest.raises(ProgramError, match="no such luck"):
        careless.using(backend=backend).run()


def test_calls_behind_a_failed_one_are_not_made(backend: Scripted) -> None:
    backend.answer = fail_on_boom
    with pytest.raises(ProgramError):
        two_calls.using(backend=backend).run("boom")
    assert backend.keys == ["boom"]


def test_in_a_batch_an_error_ends_its_own_run_only(backend: Scripted) -> None:
    backend.answer = fail_on_boom
    batch = two_calls.using(backend=backend).run_batch([{"word": word} for word in ("a", "boom", "b")])
    assert [batch[i].value for i in (0, 2)] == ["okok", "okok"]
    assert [i for i, _ in batch.errors] == [1]
    assert isinstance(batch[1].error, ProgramError)
    with pytest.raises(ProgramError, match="no such luck"):
        batch[1]["second"]
    assert batch.report.failed_calls == 1


def test_an_error_of_the_programs_own_is_its_own(backend: Scripted) -> None:
    @function
    def broken(s: State, n: int) -> float:
        s += gen("x")
        return 1 / n

    with pytest.raises(ZeroDivisionError):
        broken.using(backend=backend).run(0)
    batch = broken.using(backend=backend).run_batch([{"n": 0}, {"n": 1}])
    assert isinstance(batch[0].error, ZeroDivisionError)
    assert batch[1].value == 1.0


def test_items_that_do_not_suit_the_function_are_refused_before_anything_runs(backend: Scripted) -> None:
    with pytest.raises(WrongUse, match=r"items\[1\].*wrod"):
        two_calls.using(backend=backend).run_batch([{"word": "a"}, {"word": "b", "wrod": "c"}])
    assert backend.keys == []


def test_without_a_backend_the_error_says_how_to_choose_one(backend: Scripted) -> None:
    with pytest.raises(WrongUse, match="use_backend"):
        two_calls.run("a")
    with use_backend(backend):
        assert two_calls.run("a").value == "okok"
    with pytest.raises(WrongUse, match="use_backend"):
        two_calls.run("a")


def test_an_option_that_there_is_not_is_told_which_was_meant(backend: Scripted) -> None:
    wrong: Any = {"max_token": 4}
    with pytest.raises(TypeError, match=r"gen has no option 'max_token'; did you mean max_tokens"):
        gen("x", **wrong)
    for options, words in (
        ({"temprature": 0}, r"using has no option 'temprature'; did you mean temperature\?"),
        ({"max_tokens": 3}, r"'max_tokens': it belongs into each gen\(…\)"),
    ):
        program: Any = function(lambda s: None)
        with pytest.raises(TypeError, match=words):
            program.using(backend=backend, **options)
