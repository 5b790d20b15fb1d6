"""Forking, joining, and what runs at the same time."""

from __future__ import annotations

import pytest

from axil.lang.errors import ProgramError
from axil.lang.expressions import assistant, gen, user
from axil.lang.program import function
from axil.lang.state import State
from tests.axil.lang.scripted import Scripted


def test_branches_are_answered_at_the_same_time(backend: Scripted) -> None:
    backend.wait_for_open = 4
    backend.answer = lambda prompt: prompt.text[-1]

    @function
    def program(s: State) -> list[str]:
        s += "start "
        branches = s.fork(4)
        branches += lambda i: f"{i}"
        branches += gen("x")
        return branches["x"]

    assert program.using(backend=backend).run().value == ["0", "1", "2", "3"]
    assert sorted(backend.keys) == ["start 0", "start 1", "start 2", "start 3"]


def test_a_program_goes_on_while_its_calls_are_open(backend: Scripted) -> None:
    backend.wait_for_open = 2

    @function
    def program(s: State) -> None:
        (other,) = s.fork()
        s += gen("x")
        other += gen("y")
        assert (s["x"], other["y"]) == ("ok", "ok")

    program.using(backend=backend).run()
    assert backend.most_open == 2


def test_a_branch_begins_behind_the_answers_that_were_open_at_the_fork(backend: Scripted) -> None:
    @function
    def program(s: State) -> None:
        s += "a" + gen("x") + "b"
        (branch,) = s.fork()
        branch += "c" + gen("y")
        assert branch["x"] == "ok"
        assert branch.text() == "aokbcok"

    program.using(backend=backend).run()


def test_joining_by_variable_gives_a_list_in_the_branches_order(backend: Scripted) -> None:
    backend.answer = lambda prompt: prompt.text[-1]

    @function
    def program(s: State) -> None:
        s += "p" + gen("before")
        branches = s.fork(3)
        for i, branch in enumerate(branches):
            branch += f"{2 - i}" + gen("x")
        branches.join()
        s += "then " + ",".join(s["x"])

    result = program.using(backend=backend).run()
    assert result["x"] == ["2", "1", "0"]
    assert result["before"] == "p"
    assert result.text() == "ppthen 2,1,0"


def test_joining_by_text_appends_what_each_branch_has_added(backend: Scripted) -> None:
    @function
    def program(s: State) -> None:
        s += "points:"
        branches = s.fork(2)
        branches += lambda i: f" {i}=" + gen("x")
        branches.join("text")
        s += "." + gen("end")

    assert program.using(backend=backend).run().text() == "points: 0=ok 1=ok.ok"


def test_joining_text_across_turns_is_an_error(backend: Scripted) -> None:
    @function
    def program(s: State) -> None:
        s += user("q")
        branches = s.fork(2)
        branches += assistant(gen("x"))
        branches.join("text")
        s += user("q2") + assistant(gen("y"))
        s["y"]

    with pytest.raises(ProgramError, match="turn in which they were forked"):
        program.using(backend=backend).run()


def test_a_branch_of_a_chat_keeps_its_turns(backend: Scripted) -> None:
    @function
    def program(s: State) -> None:
        s += user("q")
        branches = s.fork(2)
        for branch in branches:
            branch += assistant(gen("x"))
        assert [branch.messages()[-1]["content"] for branch in branches] == ["ok", "ok"]

    program.using(backend=backend).run()


def test_a_program_may_call_another_on_its_own_state(backend: Scripted) -> None:
    @function
    def inner(s: State, word: str) -> str:
        s += word + gen("x")
        return str(s["x"]).upper()

    @function
    def outer(s: State) -> str:
        s += "a"
        return inner(s, "b")

    result = outer.using(backend=backend).run()
    assert result.value == "OK"
    assert result.text() == "abok"
