from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import openai
import pytest

from tests.deadline import DEADLINE_S
from tests.fakes import BOS, CHAT_TEMPLATE, END_OF_TURN, EOS, Script, Server, running_server, submitted_ids, text_ids
from wire.messages.to_scheduler import Cancel, Finish, Submit

USER = [{"role": "user", "content": "hi"}]


async def _submitted(server: Server) -> Submit:
    submit = await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    assert isinstance(submit, Submit)
    return submit


async def test_a_chat_is_answered(server: Server, client: openai.AsyncOpenAI) -> None:
    server.scheduler.script = lambda _: Script([*text_ids("hello"), END_OF_TURN], cached_tokens=4)
    answer = await client.chat.completions.create(model="fake", messages=USER)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 6
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert answer.usage.prompt_tokens_details.cache_write_tokens == answer.usage.prompt_tokens - 4
    submit = await _submitted(server)
    assert submitted_ids(submit) == [BOS, *text_ids("<user>hi"), END_OF_TURN, *text_ids("\n<assistant>")]
    assert submit.sampling.max_new_tokens is None
    assert submit.request_id == answer.id


async def test_what_changes_no_answer_may_be_sent_along(
    server: Server, client: openai.AsyncOpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    wish = {"model": "default", "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    prediction = {"type": "content", "content": "hello"}
    answer = await client.chat.completions.create(messages=USER, prediction=prediction, verbosity="low", **wish)
    assert answer.model == "fake"
    await client.completions.create(prompt="hi", extra_body=wish, model="default", user="u")
    assert "unknown field" not in caplog.text


async def test_a_chat_streams_role_content_and_reason(server: Server, client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="fake", messages=USER, stream=True)
    chunks = [chunk async for chunk in stream]
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello world"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[-1] == "length"
    assert set(reasons[:-1]) == {None}


async def test_usage_comes_last_in_a_stream_when_asked_for(server: Server, client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="fake", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 11
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 0
    assert all(chunk.choices for chunk in chunks[:-1])


async def test_usage_comes_with_every_chunk_when_asked_for(server: Server, client: openai.AsyncOpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = await client.chat.completions.create(model="fake", messages=USER, stream=True, stream_options=options)
    counts = [chunk.usage.completion_tokens async for chunk in stream]
    assert counts == sorted(counts)
    assert counts[-1] == 11


async def test_an_aborted_chat_is_an_error(server: Server, client: openai.AsyncOpenAI) -> None:
    server.scheduler.script = lambda _: Script(is_held=True)
    asked = asyncio.create_task(
        client.chat.completions.create(model="fake", messages=USER, extra_body={"rid": "chat-1"})
    )
    await _submitted(server)
    assert (await server.client.control("abort", request_id="chat-1")).count == 1
    with pytest.raises(openai.APIStatusError, match="aborted by an operator") as error:
        await asked
    assert error.value.status_code == 499


async def test_a_chat_gives_logprobs(server: Server, client: openai.AsyncOpenAI) -> None:
    server.scheduler.script = lambda _: Script(text_ids("é"))
    answer = await client.chat.completions.create(model="fake", messages=USER, logprobs=True, top_logprobs=2)
    first, second = answer.choices[0].logprobs.content
    assert (first.logprob, first.bytes, second.bytes) == (-0.5, [0xC3], [0xA9])
    assert [top.logprob for top in first.top_logprobs] == [-0.5, -2.0]


async def test_a_chat_takes_parts_stop_strings_and_extensions(server: Server, client: openai.AsyncOpenAI) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    answer = await client.chat.completions.create(
        model="fake",
        messages=[{"role": "system", "content": "s"}, {"role": "user", "content": parts}],
        max_completion_tokens=9,
        stop=["wor"],
        seed=5,
        extra_body={"top_k": 3, "min_p": 0.1, "ignore_eos": True, "cache_salt": "t", "rid": "mine"},
    )
    assert answer.choices[0].message.content == "hello "
    assert answer.choices[0].finish_reason == "stop"
    submit = await _submitted(server)
    assert bytes(byte for byte in submitted_ids(submit) if byte < 256) == b"<system>s\n<user>a\nb\n<assistant>"
    assert (submit.sampling.top_k, submit.sampling.min_p, submit.sampling.seed) == (3, 0.1, 5)
    assert submit.sampling.max_new_tokens == 9
    assert submit.sampling.stop_token_ids == ()
    assert (submit.request_id, submit.salt) == ("mine", "t")


async def test_the_last_message_can_be_continued(server: Server, client: openai.AsyncOpenAI) -> None:
    begun = [*USER, {"role": "assistant", "content": "I am "}]
    await client.chat.completions.create(model="fake", messages=begun, extra_body={"continue_final_message": True})
    submit = await _submitted(server)
    assert submitted_ids(submit)[-len("<assistant>I am ") :] == text_ids("<assistant>I am ")


async def test_a_completion_is_answered(server: Server, client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="fake", prompt="once")
    assert answer.object == "text_completion"
    assert answer.choices[0].text == "hello world"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == 4
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert (await _submitted(server)).sampling.max_new_tokens == 16


async def test_a_completion_streams(server: Server, client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model="fake", prompt="once", stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "hello world"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.total_tokens == 15


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        (["one", "two"], ["one", "two"]),
        ([104, 105], ["hi"]),
        ([[104, 105], [106]], ["hi", "j"]),
    ],
)
async def test_a_completion_takes_prompts_in_four_forms(
    server: Server, client: openai.AsyncOpenAI, prompt: list[object], texts: list[str]
) -> None:
    server.scheduler.script = lambda submit: Script(submitted_ids(submit))
    answer = await client.completions.create(model="fake", prompt=prompt)
    assert [choice.text for choice in answer.choices] == texts
    assert [choice.index for choice in answer.choices] == list(range(len(texts)))
    assert answer.usage.completion_tokens == sum(map(len, texts))


async def test_a_completion_gives_parallel_lists_of_logprobs(server: Server, client: openai.AsyncOpenAI) -> None:
    server.scheduler.script = lambda _: Script(text_ids("hi"))
    answer = await client.completions.create(model="fake", prompt="x", logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == ["h", "i"]
    assert logprobs.token_logprobs == [-0.5, -0.5]
    assert logprobs.text_offset == [0, 1]
    assert logprobs.top_logprobs[0] == {"h": -0.5, "A": -2.0}


async def test_a_completion_can_echo_its_prompt(server: Server, client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="fake", prompt="once ", echo=True)
    assert answer.choices[0].text == "once hello world"
    stream = await client.completions.create(model="fake", prompt="once ", echo=True, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "once hello world"


async def test_the_openai_client_raises_its_own_errors(server: Server, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="other", messages=USER)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.chat.completions.create(model="fake", messages=USER, temperature=-1)
    assert wrong.value.param == "temperature"
    assert wrong.value.type == "invalid_request_error"


async def test_models_are_listed(server: Server, client: openai.AsyncOpenAI) -> None:
    (model,) = (await client.models.list()).data
    assert model.id == "fake"
    assert model.max_model_len == 4096
    assert (await client.models.retrieve("fake")).id == "fake"
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.models.retrieve("other")
    assert unknown.value.code == "model_not_found"


async def test_leaving_a_chat_stream_cancels_its_request(server: Server, client: openai.AsyncOpenAI) -> None:
    server.scheduler.script = lambda _: Script(is_held=True)
    stream = await client.chat.completions.create(model="fake", messages=USER, stream=True)
    chunk = await anext(aiter(stream))
    await stream.close()
    assert await server.scheduler.received_where(lambda message: message == Cancel(request_id=chunk.id))


async def test_text_before_a_possible_stop_string_flows(server: Server, client: openai.AsyncOpenAI) -> None:
    server.scheduler.script = lambda _: Script(text_ids("abcdSTand more"), per_frame=6, is_held=True)
    stream = aiter(await client.chat.completions.create(model="fake", messages=USER, stream=True, stop="STOP"))
    await anext(stream)
    assert (await anext(stream)).choices[0].delta.content == "abcd"
    server.scheduler.release()
    rest = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(rest) == "STand more"
    assert not [message for message in server.scheduler.received if isinstance(message, Finish)]


async def test_a_model_without_template_says_what_to_do(tmp_path: Path) -> None:
    async with (
        running_server(tmp_path, chat_template=None) as server,
        aiohttp.ClientSession(server.url) as http,
        http.post("/v1/chat/completions", json={"messages": USER}) as response,
    ):
        assert response.status == 400
        assert "--chat-template" in (await response.json())["error"]["message"]


async def test_a_beginning_of_sequence_token_is_written_once(tmp_path: Path) -> None:
    async with running_server(tmp_path, adds_bos=True) as server, aiohttp.ClientSession(server.url) as http:
        bodies = [("/v1/chat/completions", {"messages": USER}), ("/v1/completions", {"prompt": "x"})]
        for path, body in [*bodies, ("/generate", {"text": "x"})]:
            async with http.post(path, json=body) as response:
                assert response.status == 200
        prompts = [submitted_ids(message) for message in server.scheduler.received if isinstance(message, Submit)]
        assert [prompt.count(BOS) for prompt in prompts] == [1, 1, 1]


async def test_what_a_template_refuses_is_a_400_and_hurts_nobody(tmp_path: Path) -> None:
    strict = "{% if messages|length > 1 %}{{ raise_exception('one message only') }}{% endif %}" + CHAT_TEMPLATE
    async with running_server(tmp_path, chat_template=strict) as server, aiohttp.ClientSession(server.url) as http:
        async with http.post("/v1/chat/completions", json={"messages": USER * 2}) as response:
            assert response.status == 400
            assert "one message only" in (await response.json())["error"]["message"]
        async with http.post("/v1/chat/completions", json={"messages": USER}) as response:
            assert response.status == 200


async def test_an_error_after_the_first_chunk_is_a_frame_of_the_stream(server: Server) -> None:
    server.scheduler.script = lambda _: Script(reason="broken", is_held=True)
    async with (
        aiohttp.ClientSession(server.url) as http,
        http.post("/v1/chat/completions", json={"messages": USER, "stream": True}) as response,
    ):
        assert response.status == 200
        server.scheduler.release()
        raw = await asyncio.wait_for(response.read(), DEADLINE_S)
    *_, error, done, _ = raw.split(b"\n\n")
    assert done == b"data: [DONE]"
    assert json.loads(error.removeprefix(b"data: "))["error"]["type"] == "server_error"


def test_the_fake_vocabulary_is_what_these_tests_assume() -> None:
    assert (BOS, EOS, END_OF_TURN) == (256, 257, 258)


async def test_penalties_and_bias_reach_the_scheduler(server: Server, client: openai.AsyncOpenAI) -> None:
    wish = {"frequency_penalty": 0.5, "presence_penalty": -1, "logit_bias": {"65": -100, "66": 2.5}, "max_tokens": 8}
    more = {"repetition_penalty": 1.1, "min_tokens": 3}
    await client.chat.completions.create(model="fake", messages=USER, **wish, extra_body=more)
    await client.completions.create(model="fake", prompt="x", **wish, extra_body=more)
    submits = [message for message in server.scheduler.received if isinstance(message, Submit)]
    assert len(submits) == 2
    for submit in submits:
        sampling = submit.sampling
        assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty) == (0.5, -1, 1.1)
        assert sampling.logit_bias == ((65, -100.0), (66, 2.5))
        assert sampling.min_new_tokens == 3


def _numbered(submit: Submit) -> Script:
    """An answer that tells a prompt's samples apart by their ids."""
    return Script(text_ids(f"answer {submit.request_id.rpartition('_')[2]}"), cached_tokens=2)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_chat_gives_several_choices(server: Server, client: openai.AsyncOpenAI, is_stream: bool) -> None:
    server.scheduler.script = _numbered
    wish = {"model": "fake", "messages": USER, "n": 3, "seed": 7, "logprobs": True}
    texts: dict[int, str] = {}
    if is_stream:
        options = {"include_usage": True}
        chunks = [c async for c in await client.chat.completions.create(**wish, stream=True, stream_options=options)]
        roles = [choice.index for chunk in chunks for choice in chunk.choices if choice.delta.role]
        ends = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        assert sorted(roles) == sorted(ends) == [0, 1, 2]
        for choice in (choice for chunk in chunks for choice in chunk.choices):
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        used = chunks[-1].usage
    else:
        answer = await client.chat.completions.create(**wish)
        texts = {choice.index: choice.message.content for choice in answer.choices}
        assert all(len(choice.logprobs.content) == 8 for choice in answer.choices)
        used = answer.usage
    assert texts == {0: "answer 0", 1: "answer 1", 2: "answer 2"}
    submits = [message for message in server.scheduler.received if isinstance(message, Submit)]
    assert len({submit.token_ids for submit in submits}) == 1
    assert used.prompt_tokens == len(submitted_ids(submits[0]))
    assert used.completion_tokens == 24
    assert used.prompt_tokens_details.cached_tokens == 2
    seeds = [submit.sampling.seed for submit in submits]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3


async def test_the_choices_of_several_prompts_are_grouped_by_prompt(server: Server, client: openai.AsyncOpenAI) -> None:
    server.scheduler.script = lambda submit: Script(submitted_ids(submit))
    answer = await client.completions.create(model="fake", prompt=["ab", "xyz"], n=2, echo=True)
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (0, "abab"),
        (1, "abab"),
        (2, "xyzxyz"),
        (3, "xyzxyz"),
    ]
    assert answer.usage.prompt_tokens == 5
    assert answer.usage.completion_tokens == 10


async def test_leaving_a_chat_with_several_choices_cancels_them_all(server: Server, client: openai.AsyncOpenAI) -> None:
    server.scheduler.script = lambda _: Script(is_held=True)
    stream = await client.chat.completions.create(model="fake", messages=USER, n=2, stream=True)
    await anext(aiter(stream))
    await stream.close()
    for submit in [message for message in server.scheduler.received if isinstance(message, Submit)]:
        assert await server.scheduler.received_where(lambda m, rid=submit.request_id: m == Cancel(request_id=rid))
    assert server.client.num_open == 0


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_echoed_prompt_has_logprobs(server: Server, client: openai.AsyncOpenAI, is_stream: bool) -> None:
    server.scheduler.script = lambda _: Script(text_ids("hi"))
    wish = {"model": "fake", "prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 1}
    if is_stream:
        choices = [chunk.choices[0] async for chunk in await client.completions.create(**wish, stream=True)]
    else:
        choices = (await client.completions.create(**wish)).choices
    assert "".join(choice.text for choice in choices) == "abch"

    def joined(name: str) -> list[object]:
        return [item for choice in choices for item in getattr(choice.logprobs, name)]

    assert joined("tokens") == ["a", "b", "c", "h"]
    assert joined("token_logprobs") == [None, -0.5, -0.5, -0.5]
    assert joined("top_logprobs") == [None, {"b": -0.5}, {"c": -0.5}, {"h": -0.5}]
    assert joined("text_offset") == [0, 1, 2, 3]
