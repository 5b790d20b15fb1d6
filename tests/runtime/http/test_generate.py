from __future__ import annotations

import asyncio

import aiohttp
import pytest
from msgspec.structs import replace

from tests.fakes import BOS, EOS, Script, Server, submitted_ids, text_ids
from tests.runtime.http.asking import generate, stream
from wire.messages.to_scheduler import Submit


async def test_a_prompt_is_answered_with_text_ids_and_meta_info(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(text_ids("hi there"), cached_tokens=3)
    answer = await generate(http, text="hello", rid="r1")
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
    await generate(http, input_ids=[1, 2, 3])
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
    await generate(http, text="x", sampling_params=sampling, **others)
    await generate(http, text="x")
    with_nulls, plain = (message.sampling for message in server.scheduler.received if isinstance(message, Submit))
    assert replace(with_nulls, seed=0) == replace(plain, seed=0)


async def test_what_sglang_s_tools_send_along_is_taken_and_asks_for_nothing(
    server: Server, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await generate(
        http,
        text="x",
        routing_key="a",
        conversation_id="b",
        custom_labels={"team": "c"},
        log_metrics=True,
        no_logs=False,
        background=False,
        require_reasoning=False,
        modalities=[],
        image_data=None,
        lora_path="",
        sampling_params={"spaces_between_special_tokens": True},
    )
    assert answer["text"] == "hello world"
    assert "unknown field" not in caplog.text
    meta = answer["meta_info"]
    assert meta["cached_tokens_details"] == {"device": meta["cached_tokens"], "host": 0}


async def test_a_batch_is_answered_in_order(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda submit: Script(submitted_ids(submit))
    answers = await generate(http, text=["one", "two", "three"], rid="b", sampling_params={"temperature": 0})
    assert [answer["text"] for answer in answers] == ["one", "two", "three"]
    assert [answer["meta_info"]["id"] for answer in answers] == ["b_0", "b_1", "b_2"]


async def test_a_batch_takes_one_value_for_each_prompt(server: Server, http: aiohttp.ClientSession) -> None:
    answers = await generate(
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


async def test_no_tokens_may_be_asked_for(server: Server, http: aiohttp.ClientSession) -> None:
    answer = await generate(http, text="x", sampling_params={"max_new_tokens": 0}, return_logprob=True)
    assert answer["text"] == ""
    assert answer["meta_info"]["completion_tokens"] == 0
    assert answer["meta_info"]["output_token_logprobs"] == []


async def test_an_id_in_use_is_refused_and_free_again_afterwards(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(is_held=True)
    first = asyncio.create_task(generate(http, text="x", rid="same"))
    await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    async with http.post("/generate", json={"text": "x", "rid": "same"}) as response:
        assert response.status == 400
        assert "'same'" in (await response.json())["error"]["message"]
    server.scheduler.release()
    await first
    await generate(http, text="x", rid="same")


async def test_the_salt_travels_under_both_names(server: Server, http: aiohttp.ClientSession) -> None:
    await generate(http, text="x", rid="a", cache_salt="tenant")
    await generate(http, text="x", rid="b", extra_key="tenant")
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
    await generate(http, text="x", rid="a", cache_priority=2, cache_ttl_s=30)
    await generate(http, text="x", rid="b")
    submits = [message for message in server.scheduler.received if isinstance(message, Submit)]
    assert [(submit.cache_priority, submit.cache_ttl_s) for submit in submits] == [(2, 30.0), (0, 0.0)]


async def test_special_tokens_in_a_prompt_are_recognised(server: Server, http: aiohttp.ClientSession) -> None:
    await generate(http, text="<s>a")
    submit = await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    assert isinstance(submit, Submit)
    assert submitted_ids(submit) == [BOS, 97]


async def test_penalties_and_bias_reach_the_scheduler(server: Server, http: aiohttp.ClientSession) -> None:
    wish = {"frequency_penalty": 0.5, "presence_penalty": 1, "repetition_penalty": 1.1, "min_new_tokens": 3}
    await generate(http, text="x", sampling_params={**wish, "logit_bias": {"65": 1}})
    submit = await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    assert isinstance(submit, Submit)
    assert {name: getattr(submit.sampling, name) for name in wish} == wish
    assert submit.sampling.logit_bias == ((65, 1.0),)


@pytest.mark.parametrize("text", ["ab", ["ab", "xyz"]])
async def test_several_answers_are_grouped_by_prompt(
    server: Server, http: aiohttp.ClientSession, text: str | list[str]
) -> None:
    server.scheduler.script = lambda submit: Script(submitted_ids(submit))
    answers = await generate(http, text=text, rid="r", sampling_params={"n": 2, "sampling_seed": -1})
    texts = [text, text] if isinstance(text, str) else ["ab", "ab", "xyz", "xyz"]
    assert [answer["text"] for answer in answers] == texts
    ids = [answer["meta_info"]["id"] for answer in answers]
    assert ids == (["r_0", "r_1"] if isinstance(text, str) else ["r_0_0", "r_0_1", "r_1_0", "r_1_1"])
    seeds = [message.sampling.seed for message in server.scheduler.received if isinstance(message, Submit)]
    assert seeds[0] == -1
    assert len(set(seeds[:2])) == 2
    frames = await stream(http, text=text, sampling_params={"n": 2})
    assert [{f["index"]: f["text"] for f in frames}[i] for i in range(len(texts))] == texts


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
    await generate(http, text="x", sampling_params=sampling)
    submit = await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    assert isinstance(submit, Submit)
    assert submit.sampling.grammar is None


async def test_each_prompt_of_a_batch_can_have_its_own_salt(server: Server, http: aiohttp.ClientSession) -> None:
    await generate(http, text=["a", "b", "c"], cache_salt=["s", None, ""], extra_key=["", "t", None])
    salts = [message.salt for message in server.scheduler.received if isinstance(message, Submit)]
    assert salts == ["s", "t", ""]
    async with http.post("/generate", json={"text": ["a"], "cache_salt": ["s"], "extra_key": ["t"]}) as response:
        assert response.status == 400


async def test_a_session_is_said_again(server: Server, http: aiohttp.ClientSession) -> None:
    answer = await generate(http, text="x", session_id="s1")
    assert answer["meta_info"]["session_id"] == "s1"
    assert "session_id" not in (await generate(http, text="x", session_id=""))["meta_info"]
