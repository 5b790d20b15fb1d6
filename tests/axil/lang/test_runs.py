"""The ways to run a program: in place, in the background, async, many at a time, streamed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from axil.lang.backend import Answer, Prompt, TokenLogprob, Usage, Wish
from axil.lang.context import use_backend
from axil.lang.errors import ProgramError, WrongUse
from axil.lang.expressions import gen
from axil.lang.home import blocking
from axil.lang.program import function
from axil.lang.state import State
from tests.axil.lang.scripted import Scripted
from tests.deadline import DEADLINE_S


@function
def ask(s: State, question: str) -> str:
    s += f"Q: {question}\nA:" + gen("answer")
    return str(s["answer"])


@function
async def ask_async(s: State, question: str) -> str:
    s += f"Q: {question}\nA:" + gen("answer")
    return str(await s.get("answer"))


def test_a_batch_gives_results_in_the_order_of_its_items(backend: Scripted) -> None:
    backend.answer = lambda prompt: prompt.text.removesuffix("\nA:")[3:]
    words = [f"{i * 37 % 100}" for i in range(100)]
    batch = ask.using(backend=backend).run_batch([{"question": word} for word in words])
    assert [result.value for result in batch] == words
    assert batch.report.calls == 100
    assert batch.report.prompt_tokens == sum(len(f"Q: {word}\nA:") for word in words)


def test_a_batchs_calls_go_out_with_common_beginnings_side_by_side(backend: Scripted) -> None:
    words = [f"{group} {i}" for i in range(10) for group in ("red", "green", "blue")]
    ask.using(backend=backend).run_batch([{"question": word} for word in words])
    groups = [key.split()[1] for key in backend.keys]
    assert groups == ["blue"] * 10 + ["green"] * 10 + ["red"] * 10


def test_a_thousand_programs_are_under_way_in_one_thread(backend: Scripted) -> None:
    backend.turns.max_open = 1000
    backend.wait_for_open = 1000
    seen: set[int] = set()

    @function
    def noting(s: State, i: int) -> None:
        seen.add(threading.get_ident())
        s += f"{i}" + gen("x")
        s["x"]
        seen.add(threading.get_ident())

    batch = noting.using(backend=backend).run_batch([{"i": i} for i in range(1000)])
    assert batch.errors == []
    assert backend.most_open == 1000
    assert len(seen) == 1


def test_no_more_programs_begin_than_concurrency_allows(backend: Scripted) -> None:
    open_now, most = 0, 0

    @function
    def noting(s: State) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        s += gen("x")
        s["x"]
        open_now -= 1

    noting.using(backend=backend).run_batch([{} for _ in range(20)], concurrency=3)
    assert most == 3
    with pytest.raises(WrongUse, match="concurrency"):
        noting.using(backend=backend).run_batch([{}], concurrency=0)


def test_iterating_over_a_batch_gives_each_run_as_it_ends(backend: Scripted) -> None:
    with use_backend(backend):
        running = ask.iter_batch([{"question": f"{i}"} for i in range(5)])
        ended = {i: result.value for i, result in running}
    assert ended == dict.fromkeys(range(5), "ok")
    assert running.report.calls == 5
    assert running.report.ended_s is not None


def test_leaving_the_iteration_stops_the_rest(backend: Scripted) -> None:
    with use_backend(backend):
        running = ask.iter_batch([{"question": f"{i}"} for i in range(50)], concurrency=1)
        next(running)
        running.close()
        assert running.report.ended_s is not None
        num_asked = len(backend.asked)
        assert ask.run("last").value == "ok"
    assert len(backend.asked) <= num_asked + 2


def test_leaving_the_iteration_cancels_the_calls_that_are_open(
    backend: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    @function
    def two(s: State, i: int) -> None:
        s += f"{i}" + gen("x")
        s["x"]
        s += gen("y")
        s["y"]

    backend.hold_from = 12
    with use_backend(backend):
        for _ in two.iter_batch([{"i": i} for i in range(50)], concurrency=8):
            break
        backend.hold_from = None
        assert ask.run("last").value == "ok"
    assert backend.num_cancelled > 0
    assert not any(key.startswith(("30", "40")) for key in backend.keys)
    assert caplog.records == []


def test_an_empty_batch_is_empty(backend: Scripted) -> None:
    assert len(ask.using(backend=backend).run_batch([])) == 0


def test_what_blocks_does_not_hold_up_the_others(backend: Scripted) -> None:
    barrier = threading.Barrier(5, timeout=DEADLINE_S)

    @function
    def with_tool(s: State) -> int:
        s += gen("x")
        return blocking(barrier.wait)

    batch = with_tool.using(backend=backend).run_batch([{} for _ in range(5)])
    assert sorted(result.value for result in batch) == [0, 1, 2, 3, 4]


def test_an_error_of_something_blocking_is_raised_in_the_program(backend: Scripted) -> None:
    @function
    def with_tool(s: State) -> str:
        try:
            blocking(int, "x")
        except ValueError:
            return "caught"
        return "not"

    assert with_tool.using(backend=backend).run().value == "caught"
    assert with_tool.using(backend=backend).run_batch([{}])[0].value == "caught"


def test_an_async_program_runs_in_all_ways(backend: Scripted) -> None:
    program = ask_async.using(backend=backend)
    assert program.run("a").value == "ok"
    assert program.run_batch([{"question": "b"}])[0].value == "ok"
    assert asyncio.run(_arun(program, "c")) == "ok"


def test_a_plain_program_can_be_awaited(backend: Scripted) -> None:
    assert asyncio.run(_arun(ask.using(backend=backend), "a")) == "ok"


def test_a_run_in_the_background_has_the_backend_of_its_starter(backend: Scripted) -> None:
    @function
    def outer(s: State) -> str:
        return ask.run("inside").value

    with use_backend(backend):
        started = outer.start()
    assert started.value == "ok"


async def _arun(program: object, question: str) -> object:
    result = await program.arun(question)  # type: ignore[attr-defined]
    return result.value


def test_an_async_program_that_waits_in_place_is_told_how_to_wait(backend: Scripted) -> None:
    @function
    async def wrong(s: State) -> None:
        s += gen("x")
        s["x"]

    with pytest.raises(WrongUse, match=r"await state\.get"):
        wrong.using(backend=backend).run()


def test_pieces_come_as_the_answer_grows(backend: Scripted) -> None:
    backend.answer = lambda prompt: "piece"
    result = ask.using(backend=backend, stream=True).start("q")
    assert list(result.stream("answer")) == list("piece")
    result.wait()
    assert result.value == "piece"


def test_streaming_works_for_async_code(backend: Scripted) -> None:
    backend.answer = lambda prompt: "piece"

    async def pieces() -> list[str]:
        result = ask.using(backend=backend, stream=True).start("q")
        return [piece async for piece in result.astream("answer")]

    assert asyncio.run(pieces()) == list("piece")


def test_a_stream_of_an_unstreamed_run_is_one_piece(backend: Scripted) -> None:
    assert list(ask.using(backend=backend).start("q").stream("answer")) == ["ok"]


def test_a_streams_error_is_raised_in_it(backend: Scripted) -> None:
    def boom(prompt: Prompt) -> str:
        raise ValueError("no")

    backend.answer = boom
    with pytest.raises(ProgramError, match="no"):
        list(ask.using(backend=backend, stream=True).start("q").stream("answer"))


def test_streaming_a_variable_that_never_comes_is_an_error(backend: Scripted) -> None:
    result = ask.using(backend=backend, stream=True).start("q")
    with pytest.raises(KeyError, match="'answer'"):
        list(result.stream("other"))


def test_closing_the_backend_ends_open_calls(backend: Scripted) -> None:
    backend.wait_for_open = 2
    result = ask.using(backend=backend).start("q")
    while not backend.asked:
        pass
    backend.home.close()
    with pytest.raises(ProgramError, match="closed"):
        result.wait()


def test_a_programs_own_options_fill_what_calls_leave_open(backend: Scripted) -> None:
    @function
    def mixed(s: State) -> None:
        s += gen("a") + gen("b", temperature=0.7)

    mixed.using(backend=backend, temperature=0.0, stop="\n").run()
    assert [(wish.temperature, wish.stop) for _, wish in backend.asked] == [(0.0, ("\n",)), (0.7, ("\n",))]


def test_a_batch_of_no_dicts_is_told_what_its_items_are(backend: Scripted) -> None:
    program, wrong = ask.using(backend=backend), {"items": ["a"]}
    with pytest.raises(
        WrongUse, match=r'^items must be dicts of arguments, {"question": …} for ask; items\[0\] is a str'
    ):
        program.run_batch(**wrong)  # type: ignore[arg-type]
    with pytest.raises(WrongUse, match=r"items\[1\].* no argument 'qestion'; did you mean question\?"):
        program.run_batch([{"question": "a"}, {"qestion": "a"}])
    with pytest.raises(WrongUse, match="missing a required argument: 'question'"):
        program.run_batch([{}])


def test_a_batchs_bar_counts_what_failed(backend: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    @function
    def even(s: State, i: int) -> None:
        if i % 2:
            raise ValueError

    batch = even.using(backend=backend).run_batch([{"i": i} for i in range(5)], progress=True)
    assert "2 failed" in capsys.readouterr().err.split("\r")[-1]
    assert repr(batch) == "<Batch of 5 results, 2 failed>"


def test_results_and_programs_show_what_they_are(backend: Scripted) -> None:
    program = ask.using(backend=backend)
    assert repr(program) == "<Program ask(question)>"
    assert repr(ask_async) == "<AsyncProgram ask_async(question)>"
    result = program.run("a")
    assert repr(result) == "<Result: value 'ok'; variables answer>"
    assert str(result.report).startswith("1 call in ")

    @function
    def failing(s: State) -> None:
        raise ValueError("no")

    assert (
        repr(failing.using(backend=backend).run_batch([{}])[0])
        == "<Result: failed with ValueError: no; variables none>"
    )


def test_logprobs_are_told_to_those_who_asked_only(backend: Scripted) -> None:
    told = (TokenLogprob("ok", -1.0),)

    async def generate(prompt: Prompt, wish: Wish, put: object) -> Answer:
        return Answer(texts=("ok",), finish_reasons=("stop",), usage=Usage(), logprobs=(told,))

    backend.generate = generate  # type: ignore[method-assign]

    @function
    def both(s: State) -> None:
        s += gen("plain") + gen("told", logprobs=0)

    result = both.using(backend=backend).run()
    assert result.meta("plain").logprobs == ()
    assert result.meta("told").logprobs == (told,)
