"""What a program may do with its state."""

from __future__ import annotations

import pytest

from axil.lang.backend import Message, Prompt
from axil.lang.errors import ProgramError, Unsupported, WrongUse
from axil.lang.expressions import assistant, gen, image, select, system, user, user_begin, user_end
from axil.lang.program import function
from axil.lang.state import State
from tests.axil.lang.scripted import Scripted


def test_an_answer_becomes_a_variable_and_part_of_the_text(backend: Scripted) -> None:
    backend.answer = lambda prompt: "Paris"

    @function
    def capital(s: State, country: str) -> None:
        s += f"The capital of {country} is"
        s += " " + gen("answer", stop=".") + "."

    result = capital.using(backend=backend).run("France")
    assert result["answer"] == "Paris"
    assert result.text() == "The capital of France is Paris."


def test_constants_before_a_call_are_sent_together(backend: Scripted) -> None:
    @function
    def three(s: State) -> None:
        s += "a"
        s += "b"
        s += gen("x", max_tokens=1) + "c"
        s += gen("y")

    three.using(backend=backend).run()
    assert backend.keys == ["ab", "abokc"]


def test_turns_are_sent_as_messages_and_the_open_one_as_text(backend: Scripted) -> None:
    @function
    def chat(s: State) -> None:
        s += system("Be brief.")
        s += user("Hi")
        s += assistant("Well, " + gen("a"))
        with s.user():
            s += "And?"
        with s.assistant():
            s += gen("b")

    result = chat.using(backend=backend).run()
    first, second = (prompt for prompt, _ in backend.asked)
    assert first == Prompt(
        role="assistant", text="Well, ", messages=(Message("system", "Be brief."), Message("user", "Hi"))
    )
    assert second.messages[-2:] == (Message("assistant", "Well, ok"), Message("user", "And?"))
    assert result.messages()[-1] == {"role": "assistant", "content": "ok"}
    assert result.text().startswith("system: Be brief.\n\nuser: Hi")


def test_a_turn_may_be_opened_and_closed_by_hand(backend: Scripted) -> None:
    @function
    def chat(s: State) -> None:
        s += user_begin() + "Hi" + user_end()
        s += assistant(gen("a"))

    assert chat.using(backend=backend).run().messages()[0] == {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s.__iadd__("text").__iadd__(user("hi")),
        lambda s: s.__iadd__(user("hi")).__iadd__("text"),
        lambda s: s.__iadd__(user("hi")).__iadd__(gen("x")),
        lambda s: s.__iadd__(user(user("hi"))),
        lambda s: s.__iadd__(user_end()),
        lambda s: s.__iadd__(7),
        lambda s: s.fork(0),
        lambda s: s.select("x", []),
        lambda s: s.select("x", ["a", "a"]),
        lambda s: s.gen("x", dtype=dict),
        lambda s: s.gen("x", n=0),
        lambda s: s.gen("x", regex="a", json_schema="{}"),
    ],
)
def test_what_has_no_meaning_is_an_error_at_its_own_line(backend: Scripted, wrong: object) -> None:
    @function
    def program(s: State) -> None:
        assert callable(wrong)
        wrong(s)

    with pytest.raises(WrongUse):
        program.using(backend=backend).run()


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="temprature"):
        gen("x", temprature=0.5)  # type: ignore[call-overload]


def test_an_image_is_refused() -> None:
    with pytest.raises(Unsupported, match="text only"):
        image("cat.png")


def test_an_unknown_variable_is_named_with_those_that_exist(backend: Scripted) -> None:
    @function
    def program(s: State) -> None:
        s += gen("answer")
        s["anwser"]

    with pytest.raises(KeyError, match="'answer'"):
        program.using(backend=backend).run()


def test_several_answers_are_a_list_and_the_text_goes_on_with_the_first(backend: Scripted) -> None:
    @function
    def program(s: State) -> list[str]:
        answers = s.gen("x", n=3)
        s += "!"
        return answers.get()

    result = program.using(backend=backend).run()
    assert result.value == ["ok", "ok", "ok"]
    assert result.text() == "ok!"


@pytest.mark.parametrize(
    ("dtype", "answer", "value", "text"),
    [
        (int, " 42 apples", 42, " 42"),
        (float, "about -1.5e3.", -1500.0, "about -1.5e3"),
        (bool, "Yes, it is", True, "Yes"),
        (bool, "that is false", False, "that is false"),
        (str, "words", "words", "words"),
    ],
)
def test_a_dtype_turns_the_answer_into_a_value(
    backend: Scripted, dtype: type[int], answer: str, value: object, text: str
) -> None:
    backend.answer = lambda prompt: answer

    @function
    def program(s: State) -> int:
        return s.gen("x", dtype=dtype).get()

    result = program.using(backend=backend).run()
    assert result.value == value
    assert result["x"] == value
    assert result.text() == text


def test_an_answer_that_is_not_of_its_dtype_is_an_error_with_the_answer(backend: Scripted) -> None:
    @function
    def program(s: State) -> int:
        return s.gen("x", dtype=int).get()

    with pytest.raises(ProgramError, match="'ok' holds no int"):
        program.using(backend=backend).run()


def test_a_scope_gives_its_text_a_name(backend: Scripted) -> None:
    @function
    def program(s: State) -> None:
        s += "before "
        with s.var_scope("inner"):
            s += "a " + gen("x") + " b"
        s += " after"

    assert program.using(backend=backend).run()["inner"] == "a ok b"


def test_a_copy_leaves_the_original_as_it_is(backend: Scripted) -> None:
    @function
    def program(s: State) -> str:
        s += "a"
        with s.copy() as other:
            other += "b"
            other += gen("x")
        s += "c"
        return str(other["x"])

    result = program.using(backend=backend).run()
    assert result.value == "ok"
    assert result.text() == "ac"
    assert "x" not in result


def test_meta_tells_a_calls_tokens(backend: Scripted) -> None:
    @function
    def program(s: State) -> None:
        s += "abc" + gen("x")

    meta = program.using(backend=backend).run().meta("x")
    assert (meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens) == (3, 1, 2)
    assert meta.finish_reason == "stop"


def test_select_takes_the_best_by_the_mean_of_its_tokens(backend: Scripted) -> None:
    backend.scores = {"long one": (-1.0, -1.0, -1.0), "short": (-1.5,)}

    @function
    def program(s: State) -> None:
        s += select("x", list(backend.scores))

    result = program.using(backend=backend).run()
    assert result["x"] == result.text() == "long one"
    assert result.meta("x").scores == {"long one": -1.0, "short": -1.5}


def test_select_greedily_takes_the_likeliest_first_token(backend: Scripted) -> None:
    backend.scores = {"a b": (-1.0, -9.0), "c": (-2.0,), "a d": (-1.0, -3.0)}

    @function
    def program(s: State) -> None:
        s += gen("x", choices=list(backend.scores), choices_method="greedy-token")

    assert program.using(backend=backend).run()["x"] == "a d"


def test_a_states_gen_takes_choices_too(backend: Scripted) -> None:
    backend.scores = {"a": (-1.0,), "b": (-2.0,)}

    @function
    def program(s: State) -> str:
        return s.gen("x", choices=["a", "b"]).get()

    assert program.using(backend=backend).run().value == "a"


def test_select_may_discount_what_is_likely_anyway(backend: Scripted) -> None:
    backend.scores = {"common": (-1.0,), "apt": (-2.0,)}
    backend.alone = {"common": (-1.0,), "apt": (-6.0,)}

    @function
    def program(s: State) -> None:
        s += select("x", list(backend.scores), method="unconditional-normalized")

    assert program.using(backend=backend).run()["x"] == "apt"
