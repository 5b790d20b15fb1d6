from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from runtime.config import HttpConfig
from tests.deadline import DEADLINE_S
from tests.fakes import Script, Server, running_server
from wire.messages.to_scheduler import Cancel, Submit
from wire.messages.to_tokenizer import Refused, Stats

GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


async def test_a_prompt_that_can_never_fit_is_refused_before_it_is_tokenised(
    server: Server, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.front.generator.tokenizer, "encode", lambda *_, **__: pytest.fail("was tokenised"))
    text = "x" * 100_000
    for route, body in (
        (GENERATE, {"text": text}),
        (COMPLETIONS, {"prompt": text}),
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
    ):
        async with http.post(route, json=body) as response:
            assert response.status == 400, route
            assert (await response.json())["error"]["code"] == "context_length_exceeded"


async def test_a_large_batch_leaves_the_event_loop_to_others(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.script = lambda _: Script(is_held=True)
    large = asyncio.create_task(_status(http, {"text": ["x"] * 1024, "sampling_params": {"max_new_tokens": 1}}))
    await server.scheduler.received_where(lambda message: isinstance(message, Submit))
    async with http.get("/health") as response:
        assert response.status == 200
    assert server.client.num_open < 1024  # health was answered before the whole batch was submitted
    server.scheduler.release()
    assert await large == 200


async def _status(http: aiohttp.ClientSession, body: dict[str, object]) -> int:
    async with http.post("/generate", json=body) as response:
        return response.status


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
async def test_an_unknown_model_is_a_404(http: aiohttp.ClientSession, route: str) -> None:
    async with http.post(route, json={"model": "other", "prompt": "x", "messages": HI}) as response:
        assert response.status == 404
        error = (await response.json())["error"]
        assert error["code"] == "model_not_found"
        assert error["param"] == "model"


async def test_a_body_over_the_limit_is_a_413(tmp_path: Path) -> None:
    config = HttpConfig(port=0, max_body_bytes=1000)
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        async with http.post("/generate", json={"text": "x" * 2000}) as response:
            assert response.status == 413
            assert "1,000 bytes" in (await response.json())["error"]["message"]

        async def in_chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b" " * 100

        async with http.post("/generate", data=in_chunks()) as response:
            assert response.status == 413
        async with http.post("/generate", json={"text": "x"}) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("context_length_exceeded", 400),
        ("duplicate_request_id", 400),
        ("invalid_request", 400),
        ("overloaded", 429),
        ("unavailable", 503),
        ("internal_error", 500),
        ("no such code", 500),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_what_the_scheduler_refuses_has_its_true_status_also_in_a_stream(
    server: Server, http: aiohttp.ClientSession, code: str, status: int, is_stream: bool
) -> None:
    server.scheduler.script = lambda submit: Script(
        refusal=Refused(request_id=submit.request_id, code=code, message="the message", field="the_field")
    )
    for route, body in ((GENERATE, {"text": "x"}), (COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": HI})):
        async with http.post(route, json={**body, "stream": is_stream}) as response:
            assert response.status == status
            error = (await response.json())["error"]
            assert error["message"] == "the message"
            assert error["param"] == "the_field"
            assert ("Retry-After" in response.headers) == (status in (429, 503))
    assert server.client.num_open == 0


async def test_one_refused_prompt_of_a_batch_cancels_the_others(server: Server, http: aiohttp.ClientSession) -> None:
    def script(submit: object) -> Script:
        refusal = Refused(request_id="b_1", code="context_length_exceeded", message="too long")
        return Script(refusal=refusal) if submit.request_id == "b_1" else Script(is_held=True)

    server.scheduler.script = script
    async with http.post("/generate", json={"text": ["x", "y", "z"], "rid": "b"}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "context_length_exceeded"
    assert server.client.num_open == 0


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_unknown_field_is_ignored_and_told_in_a_header_and_once_in_the_log(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, is_streamed: bool
) -> None:
    body = {"text": "x", "novelty": 1, "sampling_params": {"temprature": 2}, "stream": is_streamed}
    told = ['"sampling_params.temprature"; did you mean temperature?', '"novelty"']
    with caplog.at_level(logging.WARNING, logger="runtime"):
        for _ in range(2):
            async with http.post("/generate", json=body) as response:
                assert response.status == 200
                assert response.headers["X-Axil-Ignored"] == ", ".join(told)
    assert [record.getMessage() for record in caplog.records] == [f"unknown field ignored: {each}" for each in told]
    async with http.post("/generate", json={"text": "x"}) as response:
        assert "X-Axil-Ignored" not in response.headers


async def test_made_up_field_names_neither_fill_the_log_nor_write_into_it(
    server: Server, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    names = {f"{i}\n\u009b31m{'x' * 5000}": 1 for i in range(150)}
    with caplog.at_level(logging.WARNING, logger="runtime"):
        for field in ({**names}, {"later": 1}):
            async with http.post("/generate", json={"text": "x", **field}) as response:
                assert response.status == 200
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 100
    assert all(line.isprintable() and len(line) < 200 for line in lines)
    assert all(len(name) < 200 for name in server.front.unknown_fields)


async def test_a_path_does_not_write_into_the_log(
    server: Server, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request_id: str) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(server.front.records, "find", fail)
    async with http.get("/requests/a%0Aforged") as response:
        assert response.status == 500
    (line,) = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert "\n" not in line
    assert "a\\nforged" in line


async def test_a_body_that_says_that_it_is_too_large_is_refused_before_it_comes(tmp_path: Path) -> None:
    config = HttpConfig(port=0, max_body_bytes=1000)
    async with running_server(tmp_path, config=config) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
        assert b" 413 " in await asyncio.wait_for(reader.readline(), DEADLINE_S)
        writer.close()


@pytest.mark.parametrize(
    ("expect", "length", "first_line"),
    [("100-continue", 13, b" 100 "), ("100-continue", 1001, b" 413 "), ("200-ok", 13, b" 200 ")],
)
async def test_a_body_is_asked_for_unless_it_is_too_large_and_unknown_expectations_mean_nothing(
    tmp_path: Path, expect: str, length: int, first_line: bytes
) -> None:
    config = HttpConfig(port=0, max_body_bytes=1000)
    async with running_server(tmp_path, config=config) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nExpect: {expect}\r\n\r\n"
        writer.write(head.encode())
        if expect != "100-continue":
            writer.write(b'{"text": "x"}')
        assert first_line in await asyncio.wait_for(reader.readline(), DEADLINE_S)
        if first_line == b" 100 ":
            await reader.readline()
            writer.write(b'{"text": "x"}')
            assert b" 200 " in await asyncio.wait_for(reader.readline(), DEADLINE_S)
        writer.close()


async def test_a_limit_that_the_scheduler_knows_is_told_in_the_client_s_words(
    server: Server, http: aiohttp.ClientSession
) -> None:
    def refusal(submit: Submit) -> Script:
        message = "the prompt has 1 token and max_new_tokens is 9. Lower max_new_tokens to 8."
        code = "context_length_exceeded"
        return Script(refusal=Refused(request_id=submit.request_id, code=code, message=message, field="max_new_tokens"))

    server.scheduler.script = refusal
    for route, body, name in (
        (COMPLETIONS, {"prompt": "x", "stream": True}, "max_tokens"),
        (CHAT, {"messages": HI, "max_completion_tokens": 9}, "max_completion_tokens"),
        (GENERATE, {"text": "x"}, "max_new_tokens"),
    ):
        async with http.post(route, json=body) as response:
            error = (await response.json())["error"]
            assert error["param"] == name
            assert error["message"] == f"the prompt has 1 token and {name} is 9. Lower {name} to 8."


async def test_a_body_that_does_not_come_is_a_408(http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.http.fields.BODY_S", 0.05)
    never = asyncio.Event()

    async def stalling() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    async with http.post("/generate", data=stalling()) as response:
        assert response.status == 408
        assert (await response.json())["error"]["code"] == "request_timeout"


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
async def test_openai_routes_take_only_what_says_that_it_is_json(http: aiohttp.ClientSession, route: str) -> None:
    body = json.dumps({"prompt": "x", "messages": HI})
    for content_type, status in (("text/plain", 400), ("application/json; charset=utf-8", 200)):
        async with http.post(route, data=body, headers={"Content-Type": content_type}) as response:
            assert response.status == status
    async with http.post(route, data=body, headers={"Content-Type": "text/plain"}) as response:
        assert "application/json" in (await response.json())["error"]["message"]


async def test_an_error_has_a_request_id_of_its_own(http: aiohttp.ClientSession) -> None:
    ids = set()
    for path, body in (("/generate", {}), (COMPLETIONS, {"prompt": ""}), (CHAT, {"messages": []}), ("/nowhere", {})):
        async with http.post(path, json=body) as response:
            assert response.status >= 400
            ids.add(response.headers["X-Request-Id"])
    assert len(ids) == 4


async def test_unknown_paths_and_methods_have_the_envelope_too(http: aiohttp.ClientSession) -> None:
    async with http.get("/nowhere") as response:
        assert response.status == 404
        assert "/nowhere" in (await response.json())["error"]["message"]
    async with http.get("/generate") as response:
        assert response.status == 405
        assert (await response.json())["error"]["code"] == "method_not_allowed"


async def test_a_panic_of_a_library_is_a_500_and_the_server_goes_on(
    server: Server, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        pass

    def panic(*_: object, **__: object) -> list[int]:
        raise Panic

    with monkeypatch.context() as patch:
        patch.setattr(server.front.generator.tokenizer, "encode", panic)
        for text in ("short", "long" * 1000):
            async with http.post("/generate", json={"text": text}) as response:
                assert response.status == 500
                assert (await response.json())["error"]["code"] == "internal_error"
    async with http.post("/generate", json={"text": "x"}) as response:
        assert response.status == 200


async def test_before_the_first_figures_everything_is_503(tmp_path: Path) -> None:
    async with running_server(tmp_path, is_ready=False) as server, aiohttp.ClientSession(server.url) as http:
        for method, path in (("get", "/health"), ("post", "/generate"), ("post", "/flush_cache")):
            async with http.request(method, path, json={"text": "x"}) as response:
                assert response.status == 503
                assert "starting" in (await response.json())["error"]["message"]
                assert "Retry-After" in response.headers
        async with http.get("/live") as response:
            assert response.status == 200


async def test_health_is_false_when_the_scheduler_says_what_hangs(server: Server, http: aiohttp.ClientSession) -> None:
    async with http.get("/health") as response:
        assert response.status == 200
    server.scheduler.stats = Stats(stuck="step 5 has been outstanding for 40 s")
    await server.client.control("stats")
    async with http.get("/health") as response:
        assert response.status == 503
        assert "step 5" in (await response.json())["error"]["message"]


async def test_an_answer_that_takes_longer_than_it_may_ends_with_an_error(tmp_path: Path) -> None:
    config = HttpConfig(port=0, request_timeout=0.5)
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        server.scheduler.script = lambda _: Script(is_held=True)
        async with http.post("/generate", json={"text": "x", "rid": "late"}) as response:
            assert response.status == 504
            assert response.headers["X-Should-Retry"] == "false"
            assert (await response.json())["error"]["code"] == "deadline_exceeded"
        assert await server.scheduler.received_where(lambda message: message == Cancel(request_id="late"))
        async with http.post("/generate", json={"text": "x", "stream": True}) as response:
            assert response.status == 200
            *_, last, done, _ = (await response.read()).split(b"\n\n")
            assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "deadline_exceeded"
            assert done == b"data: [DONE]"
        server.scheduler.script = lambda _: Script()
        async with asyncio.timeout(DEADLINE_S):
            while not await _is_answered(http):  # on a busy machine an answer may take too long by itself
                pass
        assert server.client.num_open == 0


async def _is_answered(http: aiohttp.ClientSession) -> bool:
    async with http.post("/generate", json={"text": "x"}) as response:
        assert response.status in {200, 504}
        return response.status == 200


async def test_a_chat_with_a_token_that_the_model_does_not_know_is_refused(
    server: Server, http: aiohttp.ClientSession
) -> None:
    await server.scheduler.send(msgspec.structs.replace(server.scheduler.stats, vocabulary=100))
    async with http.post("/abort_request", json={"rid": "nobody"}):
        pass  # answered behind the figures
    body = {"messages": [{"role": "user", "content": "x"}]}
    async with http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 400
        assert "this model's are in [0, 99]" in (await response.json())["error"]["message"]
