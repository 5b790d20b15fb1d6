"""What the backends send to servers, and what they make of the answers."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from typing import Any

import pytest

from axil.lang.backends.openai_compatible import OpenAICompatible
from axil.lang.backends.server import Server
from axil.lang.errors import ProgramError
from axil.lang.expressions import Options, assistant, gen, select, user
from axil.lang.program import function
from axil.lang.state import State
from tests.axil.lang.fake_server import FakeServer, Prepared, running


def generated(text: str, **meta: object) -> dict[str, Any]:
    told = {"finish_reason": {"type": "stop"}, "prompt_tokens": 7, "cached_tokens": 5, "completion_tokens": 2, **meta}
    return {"text": text, "meta_info": told}


def completed(text: str) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


def chatted(text: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 5}}
    return {"choices": [choice], "usage": usage}


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with running(FakeServer()) as server:
        yield server


@pytest.fixture
def server(fake: FakeServer) -> Iterator[Server]:
    with Server(fake.url, api_key="secret") as backend:
        yield backend


@pytest.fixture
def openai(fake: FakeServer) -> Iterator[OpenAICompatible]:
    with OpenAICompatible(fake.url + "/v1", "a-model") as backend:
        yield backend


@function
def ask(s: State, n: int = 1) -> str:
    s += "Q: "
    s += gen("a", max_tokens=3, temperature=0.0, stop="\n", seed=4, n=n)
    return str(s["a"])


@function
def chat(s: State) -> str:
    s += user("Hi") + assistant("Well, " + gen("a", max_tokens=3))
    return str(s["a"])


def test_plain_text_goes_to_generate_with_only_what_was_said(fake: FakeServer, server: Server) -> None:
    fake.answers["/generate"] = [Prepared(generated("yes"))]
    result = ask.using(backend=server).run()
    assert result.value == "yes"
    assert fake.asked == [
        (
            "/generate",
            {
                "text": "Q: ",
                "sampling_params": {"max_new_tokens": 3, "temperature": 0.0, "stop": ["\n"], "sampling_seed": 4},
            },
        )
    ]
    assert fake.headers[0]["Authorization"] == "Bearer secret"
    assert (result.report.prompt_tokens, result.report.cached_tokens, result.report.generated_tokens) == (7, 5, 2)


@pytest.mark.parametrize(
    ("options", "forms"),
    [({}, ["regex"]), ({"regex": "[0-9]"}, ["regex"]), ({"json_schema": "{}"}, ["json_schema"])],
)
def test_a_dtype_forces_the_form_where_no_other_is_given_and_the_backend_can(
    fake: FakeServer, server: Server, openai: OpenAICompatible, options: dict[str, Any], forms: list[str]
) -> None:
    @function
    def count(s: State) -> int:
        s += "Q: "
        return s.gen("a", dtype=int, **options).get()

    fake.answers["/generate"] = [Prepared(generated(" 42."))]
    assert count.using(backend=server).run().value == 42
    sampling = fake.asked[0][1]["sampling_params"]
    assert [name for name in ("regex", "json_schema") if name in sampling] == forms
    if options:
        assert options.items() <= sampling.items()
    else:
        assert re.fullmatch(sampling["regex"], " 42.")
        fake.answers["/v1/completions"] = [Prepared({"choices": [{"index": 0, "text": "It's 42."}]})]
        assert count.using(backend=openai).run().value == 42


def test_connections_are_kept(fake: FakeServer, server: Server) -> None:
    fake.answers["/generate"] = [Prepared(generated("yes")) for _ in range(5)]
    for _ in range(5):
        ask.using(backend=server).run()
    assert len(fake.peers) == 1


def test_several_samples_count_their_prompt_once(fake: FakeServer, server: Server) -> None:
    fake.answers["/generate"] = [Prepared([generated("one"), generated("two")])]
    result = ask.using(backend=server).run(n=2)
    assert result["a"] == ["one", "two"]
    assert (result.report.prompt_tokens, result.report.generated_tokens) == (7, 4)


def test_an_open_turn_is_sent_to_be_gone_on_with(fake: FakeServer, server: Server) -> None:
    fake.answers["/v1/chat/completions"] = [Prepared(chatted("fine"))]
    assert chat.using(backend=server).run().value == "fine"
    body = fake.asked[0][1]
    assert body["messages"] == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}]
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


def test_a_server_that_nobody_holds_any_more_closes_its_connections(fake: FakeServer) -> None:
    fake.answers["/generate"] = [Prepared(generated("yes"))]
    server = Server(fake.url)
    assert ask.using(backend=server).run().value == "yes"
    session = server._connection._session
    assert session is not None
    del server
    gc.collect()
    assert session.closed


@pytest.mark.parametrize("status", [429, 503])
def test_a_full_server_is_asked_again(fake: FakeServer, server: Server, status: int) -> None:
    fake.answers["/generate"] = [Prepared({"error": {"message": "full"}}, status), Prepared(generated("yes"))]
    assert ask.using(backend=server).run().value == "yes"


@pytest.mark.parametrize("status", [400, 404, 500, 502])
def test_nothing_else_is_asked_again(fake: FakeServer, server: Server, status: int) -> None:
    fake.answers["/generate"] = [Prepared({"error": {"message": "top_p is wrong"}}, status)]
    with pytest.raises(ProgramError, match=f"top_p is wrong .HTTP {status}"):
        ask.using(backend=server).run()
    assert len(fake.asked) == 1


def test_patience_with_a_full_server_ends(fake: FakeServer) -> None:
    fake.answers["/generate"] = [Prepared({"error": {"message": "full"}}, 429, {"Retry-After": "9"})]
    with Server(fake.url, retry_seconds=5) as server, pytest.raises(ProgramError, match="full"):
        ask.using(backend=server).run()


def test_a_server_that_is_not_there_is_named() -> None:
    with Server("http://127.0.0.1:9") as server, pytest.raises(ProgramError, match=r"127\.0\.0\.1:9 can't be reached"):
        ask.using(backend=server).run()


def test_cumulative_events_become_pieces(fake: FakeServer, server: Server) -> None:
    events = [generated("a"), generated("ab"), generated("abc", completion_tokens=3)]
    fake.answers["/generate"] = [Prepared(events=events)]
    result = ask.using(backend=server, stream=True).start()
    assert list(result.stream("a")) == ["a", "b", "c"]
    assert result["a"] == "abc"
    assert result.meta("a").completion_tokens == 3


def test_a_stream_that_breaks_off_is_an_error(fake: FakeServer, server: Server) -> None:
    fake.answers["/generate"] = [Prepared(events=[generated("a")], breaks_off=True)]
    with pytest.raises(ProgramError, match="broke off"):
        ask.using(backend=server, stream=True).run()


def test_a_stream_that_ends_before_it_is_done_is_no_answer(fake: FakeServer, server: Server) -> None:
    fake.answers["/generate"] = [Prepared(events=[generated("a")], is_done=False)]
    with pytest.raises(ProgramError, match="broke off: the answer ended before it was done"):
        ask.using(backend=server, stream=True).run()


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_that_somebody_has_aborted_is_an_error(fake: FakeServer, server: Server, is_streamed: bool) -> None:
    cut_off = generated("a", finish_reason={"type": "abort", "message": "the server was paused"})
    fake.answers["/generate"] = [Prepared(events=[cut_off]) if is_streamed else Prepared(cut_off)]
    with pytest.raises(ProgramError, match="cut off: the server was paused"):
        ask.using(backend=server, stream=is_streamed).run()


def test_an_address_that_answers_no_json_is_named(fake: FakeServer, server: Server) -> None:
    fake.answers["/generate"] = [Prepared(text="<html>Welcome</html>")]
    with pytest.raises(ProgramError, match="/generate answered no JSON, but '<html>Welcome"):
        ask.using(backend=server).run()


def test_an_error_in_a_stream_is_an_error(fake: FakeServer, server: Server) -> None:
    fake.answers["/generate"] = [Prepared(events=[{"error": {"message": "no logits"}}])]
    with pytest.raises(ProgramError, match="no logits"):
        ask.using(backend=server, stream=True).run()


def test_a_choice_is_scored_from_where_its_tokens_depart(fake: FakeServer, server: Server) -> None:
    fake.answers["/tokenize"] = [Prepared({"tokens": [[1, 2, 3], [1, 2, 9], [1, 2, 3, 4]]})]
    told = [[[-9.0, 2, None], [-1.0, 9, None]], [[-9.0, 2, None], [-0.5, 3, None], [-0.1, 4, None]]]
    answers = [generated("", input_token_logprobs=each, completion_tokens=0) for each in told]
    fake.answers["/generate"] = [Prepared(answers)]

    @function
    def pick(s: State) -> None:
        s += "Q" + select("a", ["x", "y"])

    result = pick.using(backend=server).run()
    assert fake.asked[-1][1]["logprob_start_len"] == 2
    assert result.meta("a").scores == pytest.approx({"x": -1.0, "y": -0.3})


def test_openais_completions_are_asked_in_their_own_words(fake: FakeServer, openai: OpenAICompatible) -> None:
    fake.answers["/v1/completions"] = [Prepared(completed("yes"))]
    result = ask.using(backend=openai).run()
    body = {"model": "a-model", "prompt": "Q: ", "max_tokens": 3, "temperature": 0.0, "stop": ["\n"], "seed": 4}
    assert fake.asked == [("/v1/completions", body)]
    assert result.report.untold_tokens == 7


def test_openais_chats_are_streamed_as_deltas(fake: FakeServer, openai: OpenAICompatible) -> None:
    def event(**delta: str) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    events = [event(role="assistant"), event(content="a"), event(content="b"), end, usage]
    fake.answers["/v1/chat/completions"] = [Prepared(events=events)]

    @function
    def talk(s: State) -> None:
        s += user("Hi") + assistant(gen("a"))

    result = talk.using(backend=openai, stream=True).start()
    assert list(result.stream("a")) == ["a", "b"]
    assert result.meta("a").finish_reason == "length"
    assert "continue_final_message" not in fake.asked[0][1]


@pytest.mark.parametrize("options", [{"top_k": 3}, {"regex": "a"}, {"stop_regex": "a"}, {"min_tokens": 2}])
def test_what_openais_api_can_not_do_is_refused_by_name(
    fake: FakeServer, openai: OpenAICompatible, options: Options
) -> None:
    with pytest.raises(ProgramError, match=next(iter(options))):
        ask.using(backend=openai, **options).run()
    assert fake.asked == []


def test_openais_api_can_not_go_on_in_a_turn_or_score(fake: FakeServer, openai: OpenAICompatible) -> None:
    with pytest.raises(ProgramError, match="begins each assistant turn anew"):
        chat.using(backend=openai).run()

    @function
    def pick(s: State) -> None:
        s += select("a", ["x", "y"])

    with pytest.raises(ProgramError, match="Use an axil server"):
        pick.using(backend=openai).run()
    assert fake.asked == []
