from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from runtime.config import HttpConfig
from tests.deadline import DEADLINE_S
from tests.fakes import BOS, EOS, Script, Server, running_server, submitted_ids, text_ids
from wire.messages.to_scheduler import Cancel, Finish, Submit


async def _generate(http: aiohttp.ClientSession, **body: object) -> dict[str, object]:
    async with http.post("/generate", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return answer


async def _stream(http: aiohttp.ClientSession, path: str = "/generate", **body: object) -> list[dict[str, object]]:
    async with http.post(path, json={"stream": True, **body}) as response:
        raw = await response.read()
        assert response.status == 200, raw
    return _frames(raw)


def _frames(raw: bytes) -> list[dict[str, object]]:
    *frames, done, rest = raw.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert all(frame.startswith(b"data: {") and b"\n" not in frame for frame in frames)
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames]


async def test_a_prompt_is_answered_with_text_ids_and_meta_info(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(text_ids("hi there"), cached_tokens=3)
    answer = await _generate(http, text="hello", rid="r1")
    assert answer["text"] == "hi there"
    assert answer["output_ids"] == text_ids("hi there")
    meta = answer["meta_info"]
    assert meta["id"] == "r1"
    assert meta["prompt_tokens"] == 5
    assert meta["cached_tokens"] == 3
    assert meta["completion_tokens"] == 8
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert meta["e2e_latency"] > 0


async def test_the_default_is_128_tokens_and_a_seed_is_chosen(server: Server, http: aiohttp.ClientSession) -> None:
    await _generate(http, input_ids=[1, 2, 3])
    submit = await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    assert isinstance(submit, Submit)
    assert submit.sampling.max_new_tokens == 128
    assert submit.sampling.seed is not None
    assert submitted_ids(submit) == [1, 2, 3]
    assert EOS in submit.sampling.stop_token_ids


async def test_null_means_default_in_every_field(server: Server, http: aiohttp.ClientSession) -> None:
    names = ("temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "max_new_tokens", "regex", "n")
    sampling = dict.fromkeys(names)
    others = dict.fromkeys(("stream", "rid", "lora_path", "return_logprob", "logprob_start_len", "image_data"))
    await _generate(http, text="x", sampling_params=sampling, **others)
    await _generate(http, text="x")
    with_nulls, plain = (message.sampling for message in server.scheduler.received if isinstance(message, Submit))
    assert replace(with_nulls, seed=0) == replace(plain, seed=0)


async def test_a_stream_is_cumulative_and_each_frame_one_data_line(server: Server, http: aiohttp.ClientSession) -> None:
    frames = await _stream(http, text="x")
    texts = [frame["text"] for frame in frames]
    assert texts[-1] == "hello world"
    assert all(after.startswith(before) for before, after in itertools.pairwise(texts))
    assert frames[0]["meta_info"]["finish_reason"] is None
    assert frames[-1]["meta_info"]["finish_reason"]["type"] == "length"
    assert frames[-1]["output_ids"] == text_ids("hello world")


async def test_every_network_write_holds_whole_data_lines(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = json.dumps({"text": "x", "stream": True}).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    raw = await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    rest = raw.partition(b"\r\n\r\n")[2]
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            break
        chunk, rest = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        assert chunk.startswith(b"data: ")
        assert chunk.endswith(b"\n\n")


async def test_a_batch_is_answered_in_order(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda submit: Script(submitted_ids(submit))
    answers = await _generate(http, text=["one", "two", "three"], rid="b", sampling_params={"temperature": 0})
    assert [answer["text"] for answer in answers] == ["one", "two", "three"]
    assert [answer["meta_info"]["id"] for answer in answers] == ["b_0", "b_1", "b_2"]


async def test_a_batch_takes_one_value_for_each_prompt(server: Server, http: aiohttp.ClientSession) -> None:
    answers = await _generate(
        http,
        input_ids=[[1], [2]],
        sampling_params=[{"max_new_tokens": 1}, {"max_new_tokens": 2}],
        rid=["p", "q"],
        return_logprob=[True, False],
        top_logprobs_num=[2, 0],
    )
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == [1, 2]
    assert [answer["meta_info"]["id"] for answer in answers] == ["p", "q"]
    assert "output_token_logprobs" in answers[0]["meta_info"]
    assert "output_token_logprobs" not in answers[1]["meta_info"]


async def test_a_batch_stream_says_which_prompt_a_frame_belongs_to(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda submit: Script(submitted_ids(submit))
    frames = await _stream(http, text=["abc", "xyz"])
    last = {frame["index"]: frame["text"] for frame in frames}
    assert last == {0: "abc", 1: "xyz"}


async def test_logprobs_are_triples(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(text_ids("hi"))
    answer = await _generate(http, text="x", return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True)
    meta = answer["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.5, 104, "h"], [-0.5, 105, "i"]]
    assert meta["output_top_logprobs"][0] == [[-0.5, 104, "h"], [-2.0, 65, "A"]]
    assert meta["output_token_logprobs_length"] == 2
    without = await _generate(http, text="x", return_logprob=True)
    assert without["meta_info"]["output_token_logprobs"][0] == [-0.5, 104, None]


async def test_no_tokens_may_be_asked_for(server: Server, http: aiohttp.ClientSession) -> None:
    answer = await _generate(http, text="x", sampling_params={"max_new_tokens": 0}, return_logprob=True)
    assert answer["text"] == ""
    assert answer["meta_info"]["completion_tokens"] == 0
    assert answer["meta_info"]["output_token_logprobs"] == []


async def test_a_stop_string_ends_the_answer_and_tells_the_scheduler(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.script = lambda _: Script(text_ids("one two three"), is_held=False)
    answer = await _generate(http, text="x", rid="s", sampling_params={"stop": [" two", "zzz"]})
    assert answer["text"] == "one"
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": " two"}
    assert answer["meta_info"]["completion_tokens"] == 7
    assert answer["output_ids"] == text_ids("one two")


async def test_a_stop_string_in_the_middle_of_a_frame_is_answered_at_once(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.script = lambda _: Script(text_ids("one two three"), per_frame=10, is_held=True)
    answer = await _generate(http, text="x", rid="s", sampling_params={"stop": "wo", "no_stop_trim": True})
    assert answer["text"] == "one two"
    finish = await server.scheduler.received_where(lambda message: isinstance(message, Finish))
    assert finish == Finish(request_id="s", kept_tokens=7)


async def test_a_stop_token_is_counted_and_not_shown(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script([*text_ids("ab"), 33, *text_ids("cd")])
    answer = await _generate(http, text="x", sampling_params={"stop_token_ids": [33]})
    assert answer["text"] == "ab"
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": 33}
    assert answer["meta_info"]["completion_tokens"] == 3
    kept = await _generate(http, text="x", sampling_params={"stop_token_ids": [33], "no_stop_trim": True})
    assert kept["text"] == "ab!"


async def test_end_of_sequence_can_be_ignored(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script([*text_ids("ab"), EOS, *text_ids("cd")])
    assert (await _generate(http, text="x"))["text"] == "ab"
    assert (await _generate(http, text="x", sampling_params={"ignore_eos": True}))["text"] == "abcd"
    shown = await _generate(http, text="x", sampling_params={"ignore_eos": True, "skip_special_tokens": False})
    assert shown["text"] == "ab</s>cd"


async def test_a_client_that_leaves_cancels_its_request(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(is_held=True)
    for rid, is_stream in (("streamed", True), ("whole", False)):
        task = asyncio.create_task(_generate(http, text="x", rid=rid, stream=is_stream))
        await server.scheduler.received_where(lambda m, rid=rid: isinstance(m, Submit) and m.request_id == rid)
        task.cancel()
        assert await server.scheduler.received_where(lambda m, rid=rid: m == Cancel(request_id=rid))


async def test_an_id_in_use_is_refused_and_free_again_afterwards(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(is_held=True)
    first = asyncio.create_task(_generate(http, text="x", rid="same"))
    await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    async with http.post("/generate", json={"text": "x", "rid": "same"}) as response:
        assert response.status == 400
        assert "'same'" in (await response.json())["error"]["message"]
    server.scheduler.release()
    await first
    await _generate(http, text="x", rid="same")


async def test_an_id_left_at_a_stop_string_can_be_used_at_once(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(text_ids("abcdef"), per_frame=3)
    for _ in range(5):
        answer = await _generate(http, text="x", rid="again", sampling_params={"stop": "c"})
        assert answer["text"] == "ab"


async def test_an_aborted_request_says_so_in_its_finish_reason(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(is_held=True)
    task = asyncio.create_task(_generate(http, text="x", rid="job-1"))
    await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    async with http.post("/abort_request", json={"rid": "job-1"}) as response:
        assert await response.json() == {"aborted": 1}
    assert (await task)["meta_info"]["finish_reason"] == {"type": "abort", "message": "aborted by an operator"}


async def test_the_salt_travels_under_both_names(server: Server, http: aiohttp.ClientSession) -> None:
    await _generate(http, text="x", rid="a", cache_salt="tenant")
    await _generate(http, text="x", rid="b", extra_key="tenant")
    salts = [message.salt for message in server.scheduler.received if isinstance(message, Submit)]
    assert salts == ["tenant", "tenant"]


@pytest.mark.parametrize("route", ["/generate", "/v1/completions", "/v1/chat/completions"])
async def test_the_priority_travels_from_every_route(server: Server, http: aiohttp.ClientSession, route: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    prompt = {"/generate": {"text": "x"}, "/v1/completions": {"prompt": "x"}}.get(route, {"messages": messages})
    async with http.post(route, json={**prompt, "priority": -7}) as response:
        assert response.status == 200
    submit = await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    assert submit.priority == -7


async def test_wishes_to_keep_the_cache_travel_and_are_none_by_default(
    server: Server, http: aiohttp.ClientSession
) -> None:
    await _generate(http, text="x", rid="a", cache_priority=2, cache_ttl_s=30)
    await _generate(http, text="x", rid="b")
    submits = [message for message in server.scheduler.received if isinstance(message, Submit)]
    assert [(submit.cache_priority, submit.cache_ttl_s) for submit in submits] == [(2, 30.0), (0, 0.0)]


@pytest.mark.parametrize("text", ["", "héllo", "日本語", "👩‍👩‍👧"])
async def test_multibyte_text_survives_a_stream_of_single_bytes(
    server: Server, http: aiohttp.ClientSession, text: str
) -> None:
    server.scheduler.script = lambda _: Script(text_ids(text))
    frames = await _stream(http, text="x")
    assert frames[-1]["text"] == text
    assert all("\ufffd" not in frame["text"] for frame in frames)


async def test_special_tokens_in_a_prompt_are_recognised(server: Server, http: aiohttp.ClientSession) -> None:
    await _generate(http, text="<s>a")
    submit = await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    assert isinstance(submit, Submit)
    assert submitted_ids(submit) == [BOS, 97]


async def test_penalties_and_bias_reach_the_scheduler(server: Server, http: aiohttp.ClientSession) -> None:
    wish = {"frequency_penalty": 0.5, "presence_penalty": 1, "repetition_penalty": 1.1, "min_new_tokens": 3}
    await _generate(http, text="x", sampling_params={**wish, "logit_bias": {"65": 1}})
    submit = await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    assert isinstance(submit, Submit)
    assert {name: getattr(submit.sampling, name) for name in wish} == wish
    assert submit.sampling.logit_bias == ((65, 1.0),)


@pytest.mark.parametrize("text", ["ab", ["ab", "xyz"]])
async def test_several_answers_are_grouped_by_prompt(
    server: Server, http: aiohttp.ClientSession, text: str | list[str]
) -> None:
    server.scheduler.script = lambda submit: Script(submitted_ids(submit))
    answers = await _generate(http, text=text, rid="r", sampling_params={"n": 2, "sampling_seed": -1})
    texts = [text, text] if isinstance(text, str) else ["ab", "ab", "xyz", "xyz"]
    assert [answer["text"] for answer in answers] == texts
    ids = [answer["meta_info"]["id"] for answer in answers]
    assert ids == (["r_0", "r_1"] if isinstance(text, str) else ["r_0_0", "r_0_1", "r_1_0", "r_1_1"])
    seeds = [message.sampling.seed for message in server.scheduler.received if isinstance(message, Submit)]
    assert seeds[0] == -1
    assert len(set(seeds[:2])) == 2
    frames = await _stream(http, text=text, sampling_params={"n": 2})
    assert [{f["index"]: f["text"] for f in frames}[i] for i in range(len(texts))] == texts


async def test_a_pattern_ends_the_answer_behind_what_matched(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(text_ids("one 123 two 45"), per_frame=20, is_held=True)
    wish = {"stop_regex": ["[0-9]+ t", "zzz"], "stop": ["two", "45"]}
    answer = await _generate(http, text="x", rid="s", sampling_params=wish)
    assert answer["text"] == "one 123 t"
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "[0-9]+ t"}
    finish = await server.scheduler.received_where(lambda message: isinstance(message, Finish))
    assert finish == Finish(request_id="s", kept_tokens=9)
    earlier = await _generate(http, text="x", sampling_params={"stop_regex": "t.o", "stop": ["3"]})
    assert earlier["text"] == "one 12"
    assert earlier["meta_info"]["finish_reason"]["matched"] == "3"


async def test_logprobs_of_a_prompt_and_of_chosen_ids(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(text_ids("hi"))
    wish = {
        "return_logprob": True,
        "top_logprobs_num": 1,
        "token_ids_logprob": [66, 67],
        "return_text_in_logprobs": True,
    }
    answer = await _generate(http, text="abc", logprob_start_len=0, **wish)
    meta = answer["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 97, "a"], [-0.5, 98, "b"], [-0.5, 99, "c"]]
    assert meta["input_top_logprobs"] == [None, [[-0.5, 98, "b"]], [[-0.5, 99, "c"]]]
    assert meta["input_token_ids_logprobs"] == [None, *[[[-66.0, 66, "B"], [-67.0, 67, "C"]]] * 2]
    assert meta["output_token_logprobs"] == [[-0.5, 104, "h"], [-0.5, 105, "i"]]
    assert meta["output_token_ids_logprobs"] == [[[-66.0, 66, "B"], [-67.0, 67, "C"]]] * 2
    later = (await _generate(http, text="abc", logprob_start_len=2, **wish))["meta_info"]
    assert later["input_token_logprobs"] == [[-0.5, 99, "c"]]
    none = (await _generate(http, text="abc", logprob_start_len=-1, **wish))["meta_info"]
    assert none["input_token_logprobs"] == []
    without = (await _generate(http, text="abc", logprob_start_len=0, token_ids_logprob=[5]))["meta_info"]
    assert "input_token_logprobs" not in without


async def test_a_prompt_is_scored_without_a_token_of_output(server: Server, http: aiohttp.ClientSession) -> None:
    answers = await _generate(
        http,
        text=["ab", "xyz"],
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=[1, 0],
        token_ids_logprob=[[5], None],
    )
    metas = [answer["meta_info"] for answer in answers]
    assert [[one[1] for one in meta["input_token_logprobs"]] for meta in metas] == [[98], [120, 121, 122]]
    assert metas[0]["input_token_ids_logprobs"] == [[[-5.0, 5, None]]]
    assert "input_token_ids_logprobs" not in metas[1]
    assert all(meta["output_token_logprobs"] == [] for meta in metas)


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        (
            "/generate",
            {"text": "x", "sampling_params": {"json_schema": '{"type": "object"}'}},
            "sampling_params.json_schema",
        ),
        ("/generate", {"text": "x", "sampling_params": {"json_schema": "$$ANY$$"}}, "sampling_params.json_schema"),
        ("/generate", {"text": "x", "sampling_params": {"regex": "a+"}}, "sampling_params.regex"),
        ("/v1/completions", {"prompt": "x", "ebnf": 'root ::= "a"'}, "ebnf"),
        ("/v1/completions", {"prompt": "x", "structured_outputs": {"choice": ["a", "b"]}}, "structured_outputs.choice"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}},
            "response_format",
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "x"}],
                "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
            },
            "response_format.json_schema.schema",
        ),
    ],
)
async def test_a_grammar_reaches_the_runner_with_the_ends_of_an_answer(
    server: Server, http: aiohttp.ClientSession, route: str, body: dict[str, object], field: str
) -> None:
    async with http.post(route, json={**body, "ignore_eos": True}) as response:
        assert response.status == 200, await response.text()
    submit = await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    assert isinstance(submit, Submit)
    assert submit.sampling.grammar is not None
    assert submit.sampling.grammar.field == field
    assert EOS in submit.sampling.grammar.eos_token_ids
    assert EOS in submit.sampling.stop_token_ids


@pytest.mark.parametrize("sampling", [{"regex": ""}, {"json_schema": ""}, {"ebnf": ""}, {"regex": None}])
async def test_an_empty_grammar_asks_for_none(
    server: Server, http: aiohttp.ClientSession, sampling: dict[str, object]
) -> None:
    await _generate(http, text="x", sampling_params=sampling)
    submit = await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    assert isinstance(submit, Submit)
    assert submit.sampling.grammar is None


async def test_a_stream_can_hold_what_is_new_only(tmp_path: Path) -> None:
    config = HttpConfig(port=0, incremental_streaming_output=True)
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        server.scheduler.script = lambda _: Script(is_held=True)
        wish = {"text": "xyz", "return_logprob": True, "logprob_start_len": 0, "stream": True}
        async with http.post("/generate", json=wish) as response:
            raw = await response.content.readuntil(b"\n\n")
            server.scheduler.release()  # what comes together is told together, so the first must be out
            frames = _frames(raw + await response.read())
        assert len(frames) >= 2
        assert "".join(frame["text"] for frame in frames) == "hello world"
        assert list(itertools.chain.from_iterable(frame["output_ids"] for frame in frames)) == text_ids("hello world")
        logprobs = list(itertools.chain.from_iterable(frame["meta_info"]["output_token_logprobs"] for frame in frames))
        assert [token_id for _, token_id, _ in logprobs] == text_ids("hello world")
        prompt = list(itertools.chain.from_iterable(frame["meta_info"]["input_token_logprobs"] for frame in frames))
        assert [token_id for _, token_id, _ in prompt] == text_ids("xyz")
        assert frames[-1]["meta_info"]["completion_tokens"] == 11
        whole = await _generate(http, text="x")
        assert whole["text"] == "hello world"


async def test_a_stream_can_be_told_in_larger_steps(server: Server, http: aiohttp.ClientSession) -> None:
    frames = await _stream(http, text="x", sampling_params={"stream_interval": 4})
    counts = [frame["meta_info"]["completion_tokens"] for frame in frames]
    assert 1 <= len(counts) <= 4
    assert counts[-1] == 11
    assert frames[-1]["text"] == "hello world"
    assert all(after - before >= 4 for before, after in itertools.pairwise(counts[:-1]))


async def test_each_prompt_of_a_batch_can_have_its_own_salt(server: Server, http: aiohttp.ClientSession) -> None:
    await _generate(http, text=["a", "b", "c"], cache_salt=["s", None, ""], extra_key=["", "t", None])
    salts = [message.salt for message in server.scheduler.received if isinstance(message, Submit)]
    assert salts == ["s", "t", ""]
    async with http.post("/generate", json={"text": ["a"], "cache_salt": ["s"], "extra_key": ["t"]}) as response:
        assert response.status == 400


async def test_a_session_is_said_again(server: Server, http: aiohttp.ClientSession) -> None:
    answer = await _generate(http, text="x", session_id="s1")
    assert answer["meta_info"]["session_id"] == "s1"
    assert "session_id" not in (await _generate(http, text="x", session_id=""))["meta_info"]


async def test_logprobs_without_tokens_are_those_of_the_prompt(server: Server, http: aiohttp.ClientSession) -> None:
    # sglang's frontend asks so for the likelihood of a choice by itself
    wish = {"input_ids": [[5, 6], [7]], "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
    answers = await _generate(http, **wish)
    told = [answer["meta_info"]["input_token_logprobs"] for answer in answers]
    assert [[entry[:2] for entry in each] for each in told] == [[[None, 5], [-0.5, 6]], [[None, 7]]]
    (first, _) = await _generate(http, **wish, logprob_start_len=-1)
    assert first["meta_info"]["input_token_logprobs"] == []
