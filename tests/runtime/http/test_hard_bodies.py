"""Bodies that are large, hostile or written in no alphabet: bounded work, a 400 with the limit, or the right text."""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import json
from collections.abc import Callable

import aiohttp
import pytest

from tests.fakes import CONTEXT_TOKENS, Script, Server, submitted_ids, text_ids
from wire.messages.to_scheduler import Submit
from wire.messages.to_tokenizer import Stats

GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
# One character each of two, three and four bytes, and some that are joined to what stands before them.
EMOJI = "👩‍👩‍👧‍👦🏳️‍🌈🦔👍🏽é"
CJK = "漢字かなカナ한국어。𠮷"
INVALID = [
    *(bytes([byte]) for byte in range(0x80, 0x100)),
    b"\xc0\xaf",  # overlong
    b"\xe0\x80\xaf",
    b"\xf0\x80\x80\xaf",
    b"\xed\xa0\x80",  # a surrogate
    b"\xf4\x90\x80\x80",  # beyond the last code point
    b"\xe6\xbc",  # cut off
    b"\xf0\x9f\x98",
]


def large(body: object) -> io.BytesIO:
    """A body as a stream: the client warns of larger ones given whole."""
    return io.BytesIO(json.dumps(body).encode())


def bodies(text: bytes) -> list[tuple[str, bytes]]:
    return [
        (GENERATE, b'{"text": "a%sb"}' % text),
        (COMPLETIONS, b'{"prompt": ["a%sb"]}' % text),
        (CHAT, b'{"messages": [{"role": "user", "content": "a%sb"}]}' % text),
        (GENERATE, b'{"text": "x", "sampling_params": {"stop": "a%sb"}}' % text),
        (GENERATE, b'{"text": "x", "a%sb": 1}' % text),
    ]


async def test_bytes_that_are_no_utf8_are_a_400_wherever_they_stand(
    server: Server, http: aiohttp.ClientSession
) -> None:
    for invalid, (route, body) in itertools.product(INVALID, bodies(b"%s")):
        async with http.post(route, data=body.replace(b"%s", invalid), headers=JSON) as response:
            assert response.status == 400, (route, invalid)
            assert "UTF-8" in (await response.json())["error"]["message"]
    assert not any(isinstance(message, Submit) for message in server.scheduler.received)
    async with http.post(GENERATE, data=bodies("é漢👍".encode())[0][1], headers=JSON) as response:
        assert response.status == 200


async def test_a_hundred_thousand_stop_strings_are_a_400_with_the_limit(http: aiohttp.ClientSession) -> None:
    stop = [f"stop {i}" for i in range(100_000)]
    for route, body in (
        (GENERATE, {"text": "x", "sampling_params": {"stop": stop}}),
        (COMPLETIONS, {"prompt": "x", "stop": stop}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "stop": stop}),
    ):
        async with http.post(route, data=large(body), headers=JSON) as response:
            assert response.status == 400
            error = (await response.json())["error"]
            assert error["message"] == f"{error['param']} holds 100,000 items; at most 32 are allowed. Send fewer."


@pytest.mark.parametrize("unit", ["a", " ", "\n", "漢", "😀", "<|end|>", "\0"])
async def test_a_megabyte_of_one_character_or_token_is_a_400(http: aiohttp.ClientSession, unit: str) -> None:
    text = unit * (1_000_000 // len(unit.encode()))
    for route, body in (
        (GENERATE, {"text": text}),
        (COMPLETIONS, {"prompt": text}),
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
        (GENERATE, {"input_ids": [ord(unit[0]) % 256] * 500_000}),
    ):
        async with http.post(route, data=large(body), headers=JSON) as response:
            assert response.status == 400, route
            error = (await response.json())["error"]
            assert error["code"] == "context_length_exceeded"
            assert str(CONTEXT_TOKENS) in error["message"]


async def test_a_text_far_too_long_is_refused_by_its_beginning(
    server: Server, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where tokens may be as long as the text itself, its length alone says nothing."""
    tokenizer = server.front.generator.tokenizer
    monkeypatch.setattr(tokenizer, "longest_token_characters", None)
    encode, lengths = tokenizer.encode, []

    def noted(text: str, *, add_special_tokens: bool) -> list[int]:
        lengths.append(len(text))
        return encode(text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(tokenizer, "encode", noted)
    text = "漢" * 300_000
    for route, body in (
        (GENERATE, {"text": text}),
        (GENERATE, {"text": ["x" * 5000] * 100}),
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
    ):
        lengths.clear()
        async with http.post(route, data=large(body), headers=JSON) as response:
            assert response.status == 400, route
            error = (await response.json())["error"]
            assert error["code"] == "context_length_exceeded"
            assert error["message"].endswith("tokens; this model's context is 4096, output included. Shorten it.")
        assert sum(lengths) <= 16_384
    async with http.post(GENERATE, json={"text": "x" * 4000, "sampling_params": {"max_new_tokens": 1}}) as response:
        assert response.status == 200


@pytest.mark.parametrize("unit", ['{"a":1}', "[]", "1", '""', "[[],{}]"])
async def test_a_body_of_millions_of_values_is_refused_before_it_is_read(
    http: aiohttp.ClientSession, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.http.fields.orjson.loads", lambda body: pytest.fail("it was read"))
    num = 28_000_000 // (len(unit) + 1)
    body = b'{"messages": [%s]}' % ",".join([unit] * num).encode()
    async with http.post(CHAT, data=io.BytesIO(body), headers=JSON) as response:
        assert response.status == 400
        assert "are read at once" in (await response.json())["error"]["message"]


async def test_a_hundred_thousand_messages_or_parts_are_the_most(http: aiohttp.ClientSession) -> None:
    part = {"type": "text", "text": "x"}
    for messages, field in (
        ([{"role": "user", "content": ""}] * 100_001, "messages"),
        ([{"role": "user", "content": [part] * 100_001}], "messages[0].content"),
    ):
        async with http.post(CHAT, data=large({"messages": messages}), headers=JSON) as response:
            assert response.status == 400
            error = (await response.json())["error"]
            assert error["param"] == field
            assert "100,001 items; at most 100,000" in error["message"]


async def test_what_one_object_asks_for_a_thousand_prompts_is_read_once_and_bounded(
    server: Server, http: aiohttp.ClientSession
) -> None:
    biases = {str(i): 1 for i in range(65_000)}
    wish = {"logit_bias": biases, "stop": [f"{i:02}" * 512 for i in range(32)], "max_new_tokens": 1}
    started = asyncio.get_running_loop().time()
    async with http.post(GENERATE, json={"text": ["x"] * 1024, "sampling_params": wish}) as response:
        assert response.status == 400
        error = (await response.json())["error"]
        assert error["param"] == "logit_bias"
        assert "66,560,000 ids for 1,024 answers; at most 1,048,576" in error["message"]
    assert asyncio.get_running_loop().time() - started < 20, "it was read for each prompt"
    async with http.post(GENERATE, json={"text": ["x"] * 16, "sampling_params": wish}) as response:
        assert response.status == 200
        assert len(await response.json()) == 16


async def test_a_long_prompt_for_thousands_of_answers_is_refused_before_it_is_copied(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.stats = Stats(context_tokens=200_000, vocabulary=259, num_pages=20_000, page_tokens=16)
    await server.client.control("stats")
    body = {"input_ids": [[1] * 20_000] * 32, "sampling_params": {"n": 128}}
    async with http.post(GENERATE, data=large(body), headers=JSON) as response:
        assert response.status == 400
        error = (await response.json())["error"]
        assert error["param"] == "n"
        assert "327,680,000 bytes for 4,096 answers; at most 268,435,456" in error["message"]
    assert server.client.num_open == 0


async def read_deltas(http: aiohttp.ClientSession, route: str, body: dict[str, object]) -> list[str]:
    """The texts of a stream's events."""
    async with http.post(route, json={**body, "stream": True}) as response:
        assert response.status == 200
        lines = [line async for line in response.content if line != b"\n"]
    assert lines.pop() == b"data: [DONE]\n"
    events = [json.loads(line.removeprefix(b"data: ")) for line in lines]
    choices = [event["choices"][0] if "choices" in event else event for event in events]
    return [choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices]


async def test_what_is_checked_in_a_thread_is_told_by_how_much_there_is_to_check(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, to_thread = list[object](), asyncio.to_thread

    async def noted(work: Callable[..., object], *args: object) -> object:
        checked.append(work)
        return await to_thread(work, *args)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    long = {"messages": [{"role": "user", "content": "[{,}]" * 60_000}]}
    many = {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}] * 1000}
    for body, num_threads in ((long, 0), (many, 1), ({"messages": [{"role": "x"}] * 1999}, 1)):
        checked.clear()
        async with http.post(CHAT, data=large(body), headers=JSON) as response:
            assert response.status == 400, "too long, or of no known role"
        assert len(checked) == num_threads


@pytest.mark.parametrize("alphabet", [EMOJI, CJK])
async def test_ten_thousand_characters_come_out_as_they_went_in_whole_and_in_pieces(
    server: Server, http: aiohttp.ClientSession, alphabet: str
) -> None:
    text = (alphabet * 10_000)[:10_000]
    server.scheduler.stats = Stats(context_tokens=200_000, vocabulary=259, num_pages=20_000, page_tokens=16)
    await server.client.control("stats")
    ids = text_ids(text)
    server.scheduler.script = lambda submit: Script(output=ids, per_frame=7)
    limit = len(ids)
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": limit}
    completion = {"prompt": text, "max_tokens": limit}
    async with http.post(CHAT, json=chat) as response:
        assert (await response.json())["choices"][0]["message"]["content"] == text
    async with http.post(COMPLETIONS, json=completion) as response:
        assert (await response.json())["choices"][0]["text"] == text
    for route, body in ((CHAT, chat), (COMPLETIONS, completion)):
        pieces = await read_deltas(http, route, body)
        assert "".join(pieces) == text
        assert len(pieces) > 100
    stopped = await read_deltas(http, COMPLETIONS, {**completion, "stop": [alphabet[-1] + alphabet[0] + "x", "zz"]})
    assert "".join(stopped) == text
    prompts = [submitted_ids(each) for each in server.scheduler.received if isinstance(each, Submit)]
    assert prompts[1] == ids
    assert bytes(token_id for token_id in prompts[0] if token_id < 256).decode().count(text) == 1


async def test_a_cumulative_stream_of_ten_thousand_characters_never_takes_one_back(
    server: Server, http: aiohttp.ClientSession
) -> None:
    text = (EMOJI + CJK) * 500
    server.scheduler.stats = Stats(context_tokens=200_000, vocabulary=259, num_pages=20_000, page_tokens=16)
    await server.client.control("stats")
    server.scheduler.script = lambda submit: Script(output=text_ids(text), per_frame=701)
    pieces = await read_deltas(http, GENERATE, {"text": "x", "sampling_params": {"max_new_tokens": 100_000}})
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(pieces))
    assert pieces[-1] == text


async def test_output_that_is_no_text_is_the_same_whole_and_in_pieces(
    server: Server, http: aiohttp.ClientSession
) -> None:
    output = [*range(256), *itertools.chain.from_iterable(INVALID), *range(255, -1, -1)]
    server.scheduler.script = lambda submit: Script(output=output)
    body = {"prompt": list(range(256)), "max_tokens": 2000, "echo": True}
    async with http.post(COMPLETIONS, json=body) as response:
        whole = (await response.json())["choices"][0]["text"]
    expected = bytes(range(256)).decode(errors="replace") + bytes(output).decode(errors="replace")
    assert whole == expected
    assert "".join(await read_deltas(http, COMPLETIONS, body)) == expected


async def test_the_collector_rests_while_a_body_is_read(http: aiohttp.ClientSession) -> None:
    data = b'{"text": "x", "novelty": [' + b"[]," * 200_000 + b"[]]}"
    runs: list[str] = []

    def note(phase: str, _: object) -> None:
        runs.append(phase)

    gc.callbacks.append(note)
    try:
        async with http.post(GENERATE, data=io.BytesIO(data), headers=JSON) as response:
            assert response.status == 200
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled()
    assert len(runs) < 200, "a body of 30 MB would stop everything for ten seconds"
