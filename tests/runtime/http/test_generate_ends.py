from __future__ import annotations

import asyncio

import aiohttp

from tests.fakes import EOS, Script, Server, text_ids
from tests.runtime.http.asking import generate
from wire.messages.to_scheduler import Cancel, Finish, Submit


async def test_a_stop_string_ends_the_answer_and_tells_the_scheduler(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.script = lambda _: Script(text_ids("one two three"), is_held=False)
    answer = await generate(http, text="x", rid="s", sampling_params={"stop": [" two", "zzz"]})
    assert answer["text"] == "one"
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": " two"}
    assert answer["meta_info"]["completion_tokens"] == 7
    assert answer["output_ids"] == text_ids("one two")


async def test_a_stop_string_in_the_middle_of_a_frame_is_answered_at_once(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.script = lambda _: Script(text_ids("one two three"), per_frame=10, is_held=True)
    answer = await generate(http, text="x", rid="s", sampling_params={"stop": "wo", "no_stop_trim": True})
    assert answer["text"] == "one two"
    finish = await server.scheduler.received_where(lambda message: isinstance(message, Finish))
    assert finish == Finish(request_id="s", kept_tokens=7)


async def test_a_stop_token_is_counted_and_not_shown(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script([*text_ids("ab"), 33, *text_ids("cd")])
    answer = await generate(http, text="x", sampling_params={"stop_token_ids": [33]})
    assert answer["text"] == "ab"
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": 33}
    assert answer["meta_info"]["completion_tokens"] == 3
    kept = await generate(http, text="x", sampling_params={"stop_token_ids": [33], "no_stop_trim": True})
    assert kept["text"] == "ab!"


async def test_end_of_sequence_can_be_ignored(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script([*text_ids("ab"), EOS, *text_ids("cd")])
    assert (await generate(http, text="x"))["text"] == "ab"
    assert (await generate(http, text="x", sampling_params={"ignore_eos": True}))["text"] == "abcd"
    shown = await generate(http, text="x", sampling_params={"ignore_eos": True, "skip_special_tokens": False})
    assert shown["text"] == "ab</s>cd"


async def test_a_client_that_leaves_cancels_its_request(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(is_held=True)
    for rid, is_stream in (("streamed", True), ("whole", False)):
        task = asyncio.create_task(generate(http, text="x", rid=rid, stream=is_stream))
        await server.scheduler.received_where(lambda m, rid=rid: isinstance(m, Submit) and m.request_id == rid)
        task.cancel()
        assert await server.scheduler.received_where(lambda m, rid=rid: m == Cancel(request_id=rid))


async def test_an_id_left_at_a_stop_string_can_be_used_at_once(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(text_ids("abcdef"), per_frame=3)
    for _ in range(5):
        answer = await generate(http, text="x", rid="again", sampling_params={"stop": "c"})
        assert answer["text"] == "ab"


async def test_an_aborted_request_says_so_in_its_finish_reason(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(is_held=True)
    task = asyncio.create_task(generate(http, text="x", rid="job-1"))
    await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    async with http.post("/abort_request", json={"rid": "job-1"}) as response:
        assert await response.json() == {"aborted": 1}
    reason = (await task)["meta_info"]["finish_reason"]
    assert reason == {"type": "abort", "message": "aborted by an operator", "status_code": None, "err_type": None}


async def test_a_pattern_ends_the_answer_behind_what_matched(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(text_ids("one 123 two 45"), per_frame=20, is_held=True)
    wish = {"stop_regex": ["[0-9]+ t", "zzz"], "stop": ["two", "45"]}
    answer = await generate(http, text="x", rid="s", sampling_params=wish)
    assert answer["text"] == "one 123 t"
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "[0-9]+ t"}
    finish = await server.scheduler.received_where(lambda message: isinstance(message, Finish))
    assert finish == Finish(request_id="s", kept_tokens=9)
    earlier = await generate(http, text="x", sampling_params={"stop_regex": "t.o", "stop": ["3"]})
    assert earlier["text"] == "one 12"
    assert earlier["meta_info"]["finish_reason"]["matched"] == "3"
