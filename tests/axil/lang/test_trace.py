"""A program traced without a model."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from axil.lang.expressions import Select, assistant, gen, select, system, user
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
    parts = ("{questions[0]}", "[1]", "{questions[1]}", "[2]", "7 characters", "{rounds}", "1 character")
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


@pytest.mark.parametrize("choice", [select("mood", [" zebra", " happy"]), gen("mood", choices=[" zebra", " happy"])])
def test_what_comes_behind_a_choice_depends_on_it(choice: Select) -> None:
    @function
    def moody(s: State, day: str) -> None:
        s += f"{day}: " + choice + "\nColour: " + gen("col")
        if s["mood"] == " zebra" and s["mood"].strip() == "zebra":
            s += f"{s['mood'].strip()}" + s["mood"] + ("." + s["mood"]) + gen("more")

    trace = moody.trace()
    assert trace.stopped is None
    assert [call.depends_on for call in trace.calls] == [(), (1,), (1, 2)]
    assert trace.calls[1].parts == ("{day}", "2 characters", "[1]", "9 characters")
    assert trace.calls[2].parts[4:] == ("[2]", "[1]", "[1]", "1 character", "[1]")


def test_only_fixed_characters_are_counted() -> None:
    @function
    def short(s: State, q: str) -> None:
        s += "x" * 42 + q + "y" * 11 + gen("a")
        s += gen("b")

    @function
    def long(s: State, question_of_the_day: str) -> None:
        s += "x" * 42 + question_of_the_day + "y" * 11 + gen("a")
        s += gen("b")

    @function
    def chat(s: State) -> None:
        s += system("Be brief.") + user("Why?") + assistant(gen("a"))

    assert "shares 53 characters and {q} with 1" in short.explain()
    assert "shares 53 characters and {question_of_the_day} with 1" in long.explain()
    assert chat.trace().constant_prefix == "Be brief.Why?"
    assert chat.trace().calls[0].parts == ("system:", "9 characters", "user:", "4 characters", "assistant:")


def test_a_beginning_is_told_to_be_that_of_the_arguments_given() -> None:
    assert "every run begins with the same 16 characters" in tree.explain()
    assert "every run with this question begins with the same 27 characters" in tree.explain(question="Why?")


def test_answers_of_a_wanted_form_can_be_taken_for_it() -> None:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 18},
            "kind": {"enum": ["cat", "dog"]},
            "is": {"const": "x"},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
        },
        "required": ["name", "more"],
        "$defs": {"tag": {"anyOf": [{"type": "object", "properties": {"of": {"type": "string"}}}, {"type": "null"}]}},
    }

    @function
    def forms(s: State) -> None:
        s += gen("j", json_schema=schema)
        found = json.loads(s["j"])
        assert (found["age"], found["kind"], found["is"], len(found["tags"])) == (18, "cat", "x", 2)
        s += found["name"] + found["tags"][1]["of"] + found["more"] + gen("x", regex="(yes|no): [0-9]+")
        s += f"{int(s['x'].partition(': ')[2])}" + gen("n", dtype=float)
        s += f"{s['n'] + 1}{s['n']}{s['j']}" + gen("end")

    trace = forms.trace()
    assert trace.stopped is None
    assert trace.calls[1].parts == ("[1]",) * 4
    assert trace.calls[3].parts[-4:] == ("[3]", "3 characters", "[3]", "[1]")
    assert "\ue000" not in str(trace)


def test_a_program_that_takes_a_stand_in_apart_is_told_the_line_and_whose_it_is() -> None:
    @function
    def parsing(s: State, how: str) -> None:
        s += gen("free")
        if how == "json":
            json.loads(s["free"])
        elif how == "int":
            int(s["free"])
        else:
            {}[s["free"]]

    for how in ("json", "int", "dict"):
        trace = parsing.trace(how=how)
        assert trace.stopped is not None
        assert trace.stopped.startswith("the program parses 'free', whose answer is a stand-in; ")
        assert f"stopped at {__file__}:" in str(trace)
        assert "ue000" not in str(trace)
        assert "\ue000" not in str(trace)


def test_names_that_are_made_of_stand_ins_are_shown_as_such() -> None:
    @function
    def named(s: State, topic: str) -> None:
        s += gen(f"about {topic}")
        int(s[f"about {topic}"])

    text = named.explain()
    assert "1. gen('about {topic}')" in text
    assert "ue000" not in text


def test_the_programs_own_options_give_answers_their_form() -> None:
    @function
    def counted(s: State) -> int:
        s += gen("x")
        return int(s["x"])

    assert counted.using(regex="[0-9]+").trace().stopped is None


def test_explain_describes_the_calls() -> None:
    text = tree.explain()
    assert text.startswith("tree(question, shots): 4 calls")
    assert "test_trace.py" in text
    assert "shares" in text
