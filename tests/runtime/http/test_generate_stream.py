from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import aiohttp
import pytest

from runtime.config import HttpConfig
from tests.deadline import DEADLINE_S
from tests.fakes import Script, Server, running_server, submitted_ids, text_ids
from tests.runtime.http.asking import frames_of, generate, stream


async def test_a_stream_is_cumulative_and_each_frame_one_data_line(server: Server, http: aiohttp.ClientSession) -> None:
    frames = await stream(http, text="x")
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


async def test_a_batch_stream_says_which_prompt_a_frame_belongs_to(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda submit: Script(submitted_ids(submit))
    frames = await stream(http, text=["abc", "xyz"])
    last = {frame["index"]: frame["text"] for frame in frames}
    assert last == {0: "abc", 1: "xyz"}


@pytest.mark.parametrize("text", ["", "héllo", "日本語", "👩‍👩‍👧"])
async def test_multibyte_text_survives_a_stream_of_single_bytes(
    server: Server, http: aiohttp.ClientSession, text: str
) -> None:
    server.scheduler.script = lambda _: Script(text_ids(text))
    frames = await stream(http, text="x")
    assert frames[-1]["text"] == text
    assert all("\ufffd" not in frame["text"] for frame in frames)


async def test_a_stream_can_hold_what_is_new_only(tmp_path: Path) -> None:
    config = HttpConfig(port=0, incremental_streaming_output=True)
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        server.scheduler.script = lambda _: Script(is_held=True)
        wish = {"text": "xyz", "return_logprob": True, "logprob_start_len": 0, "stream": True}
        async with http.post("/generate", json=wish) as response:
            raw = await response.content.readuntil(b"\n\n")
            server.scheduler.release()  # what comes together is told together, so the first must be out
            frames = frames_of(raw + await response.read())
        assert len(frames) >= 2
        assert "".join(frame["text"] for frame in frames) == "hello world"
        assert list(itertools.chain.from_iterable(frame["output_ids"] for frame in frames)) == text_ids("hello world")
        logprobs = list(itertools.chain.from_iterable(frame["meta_info"]["output_token_logprobs"] for frame in frames))
        assert [token_id for _, token_id, _ in logprobs] == text_ids("hello world")
        prompt = list(itertools.chain.from_iterable(frame["meta_info"]["input_token_logprobs"] for frame in frames))
        assert [token_id for _, token_id, _ in prompt] == text_ids("xyz")
        assert frames[-1]["meta_info"]["completion_tokens"] == 11
        whole = await generate(http, text="x")
        assert whole["text"] == "hello world"


async def test_a_stream_can_be_told_in_larger_steps(server: Server, http: aiohttp.ClientSession) -> None:
    frames = await stream(http, text="x", sampling_params={"stream_interval": 4})
    counts = [frame["meta_info"]["completion_tokens"] for frame in frames]
    assert 1 <= len(counts) <= 4
    assert counts[-1] == 11
    assert frames[-1]["text"] == "hello world"
    assert all(after - before >= 4 for before, after in itertools.pairwise(counts[:-1]))
