"""A program traced without a model."""

from __future__ import annotations

from collections.abc import Sequence

from axil.lang.expressions import gen, select
from axil.lang.program import function
from axil.lang.state import State


@function
def tree(s: State, question: str, shots: int = 2) -> int:
    s += "Answer.\n" * shots + question
    branches = s.fork(2)
    branches += lambda i: f" plan {i}" + gen("plan")
    branches.join()
    s += " plans: " + " ".join(s["plan"])
    s += gen("n", dtype=int)
    s += select("verdict", ["good", "bad"])
    return int(s["n"]) + 1


def test_a_trace_tells_the_calls_and_what_each_needs() -> None:
    trace = tree.trace()
    assert trace.stopped is None
    assert [call.what for call in trace.calls] == ["gen('plan')", "gen('plan')", "gen('n')", "select('verdict')"]
    assert [call.depends_on for call in trace.calls] == [(), (), (1, 2), (1, 2, 3)]
    assert trace.calls[0].parts == ("16 characters", "{question}", "7 characters")


def test_a_trace_tells_the_shared_beginnings() -> None:
    trace = tree.trace(shots=3)
    assert trace.constant_prefix == "Answer.\n" * 3
    assert trace.calls[1].shared_with == 1
    assert trace.calls[1].shared_characters > len(trace.constant_prefix)


def test_given_arguments_take_the_place_of_stand_ins() -> None:
    assert "{question}" not in tree.trace(question="Why?").calls[0].parts


def test_stand_ins_are_of_the_kind_that_the_parameters_say() -> None:
    @function
    def interview(s: State, questions: list[str], rounds: int, steps: Sequence[int]) -> None:
        for question in questions:
            s += question + gen("a")
        for _ in range(rounds):
            s += f" round {rounds} " + gen("b")
        s += f"{sum(steps)}" + gen("c")

    trace = interview.trace()
    assert trace.stopped is None
    assert [call.what for call in trace.calls] == ["gen('a')"] * 2 + ["gen('b')"] * 2 + ["gen('c')"]
    assert trace.calls[0].parts == ("{questions[0]}",)
    parts = ("{questions[0]}", "[1]", "{questions[1]}", "[2]", "7 characters", "{rounds}", "1 characters")
    assert trace.calls[2].parts == parts


def test_a_stand_in_of_no_known_kind_is_not_taken_apart() -> None:
    @function
    def loose(s: State, things: dict[str, str]) -> None:
        if things:
            s += f"{things}" + gen("a")
        for thing in things:
            s += thing + gen("b")

    trace = loose.trace()
    assert [call.what for call in trace.calls] == ["gen('a')"]
    assert "'things'" in (trace.stopped or "")
    assert "things=" in (trace.stopped or "")
    assert len(loose.trace(things={"x": "1", "y": "2"}).calls) == 3


def test_a_program_that_can_not_go_on_is_traced_up_to_there() -> None:
    @function
    def picky(s: State, number: float) -> None:
        s += gen("a")
        s += f"{number + 1}" + gen("b")

    trace = picky.trace()
    assert [call.what for call in trace.calls] == ["gen('a')"]
    assert "TypeError" in (trace.stopped or "")


def test_a_program_that_loops_on_an_answer_is_stopped() -> None:
    @function
    def endless(s: State) -> None:
        while "done" not in str(s.gen("x").get()):
            s += "again"

    assert "more than 500 calls" in (endless.trace().stopped or "")


def test_explain_describes_the_calls() -> None:
    text = tree.explain()
    assert text.startswith("tree(question, shots): 4 calls")
    assert "test_trace.py" in text
    assert "shares" in text
