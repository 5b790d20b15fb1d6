from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from runtime.config import HttpConfig
from tests.fakes import Script, Server, running_server
from wire.messages import Refused, Stats, Submit

NESTED = b"[" * 900 + b"]" * 900
DEEP = b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}"

# route, body (an object, or the raw bytes), the field that the error names, a part of its message
GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def _sampling(**params: object) -> dict[str, object]:
    return {"text": "x", "sampling_params": params}


BAD: list[tuple[str, object, str | None, str]] = [
    (GENERATE, b"", None, "JSON"),
    (GENERATE, b"{", None, "JSON"),
    (GENERATE, b"[]", None, "JSON object"),
    (GENERATE, b'{"text": "\xff"}', None, "UTF-8"),
    (GENERATE, b'{"text": "\\ud800"}', None, "JSON"),
    (GENERATE, b'{"text": "x", "sampling_params": {"temperature": NaN}}', None, "JSON"),
    (GENERATE, DEEP, None, "JSON"),
    (GENERATE, b'{"text": "x", "lora_path": %s}' % NESTED, "lora_path", "deeply nested"),
    (GENERATE, b'{"text": %s}' % NESTED, "text", "deeply nested"),
    (GENERATE, b'{"text": "x", "sampling_params": {"stop": %s}}' % NESTED, "sampling_params.stop", "deeply nested"),
    (COMPLETIONS, b'{"prompt": %s}' % NESTED, "prompt", "deeply nested"),
    (CHAT, b'{"messages": [{"role": "user", "content": %s}]}' % NESTED, "messages[0].content[0]", "deeply nested"),
    (GENERATE, {}, "text", "exactly one"),
    (GENERATE, {"text": "x", "input_ids": [1]}, "text", "exactly one"),
    (GENERATE, {"text": ""}, "text", "empty"),
    (GENERATE, {"text": []}, "text", "empty"),
    (GENERATE, {"text": ["x", ""]}, "text", "empty"),
    (GENERATE, {"text": 5}, "text", "a string"),
    (GENERATE, {"text": ["x", 5]}, "text", "a string"),
    (GENERATE, {"input_ids": []}, "input_ids", "empty"),
    (GENERATE, {"input_ids": [[1], []]}, "input_ids", "empty"),
    (GENERATE, {"input_ids": "x"}, "input_ids", "integers"),
    (GENERATE, {"input_ids": [1, "x"]}, "input_ids", "integers"),
    (GENERATE, {"input_ids": [1.5]}, "input_ids", "integers"),
    (GENERATE, {"input_ids": [True]}, "input_ids", "integers"),
    (GENERATE, {"input_ids": [-1]}, "input_ids", "[0, 258]"),
    (GENERATE, {"input_ids": [1, 259]}, "input_ids", "259"),
    (GENERATE, {"input_ids": [2**63]}, "input_ids", "[0, 258]"),
    (GENERATE, {"text": ["x"] * 1025}, "text", "1,025 prompts; at most 1,024"),
    (GENERATE, {"input_ids": [[1]] * 1025}, "input_ids", "at most 1,024"),
    (GENERATE, {"text": "x" * 4096}, "text", "4096 tokens; this model's context is 4096"),
    (GENERATE, {"input_ids": [1] * 4096}, "input_ids", "4096 tokens"),
    (GENERATE, {"text": "x" * 40000}, "text", "40,000 characters"),
    (GENERATE, _sampling(stop_token_ids=[5] * 1025), "stop_token_ids", "at most 1024 may"),
    (COMPLETIONS, {"prompt": ["x"] * 1025}, "prompt", "at most 1,024"),
    (COMPLETIONS, {"prompt": [[1]] * 1025}, "prompt", "at most 1,024"),
    (COMPLETIONS, {"prompt": "x" * 5000}, "prompt", "5000 tokens"),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 5000}]}, "messages", "tokens"),
    (GENERATE, {"text": "x", "stream": "yes"}, "stream", "true or false"),
    (GENERATE, {"text": "x", "rid": 5}, "rid", "a string"),
    (GENERATE, {"text": "x", "rid": ""}, "rid", "characters"),
    (GENERATE, {"text": "x", "rid": "r" * 300}, "rid", "256"),
    (GENERATE, {"text": "x", "rid": "a\r\nSet-Cookie: b"}, "rid", "printable"),
    (GENERATE, {"text": ["x", "y"], "rid": ["a", "a"]}, "rid", "'a'"),
    (GENERATE, {"text": ["x", "y"], "rid": ["a"]}, "rid", "list of 2"),
    (GENERATE, {"text": "x", "sampling_params": 5}, "sampling_params", "an object"),
    (GENERATE, {"text": "x", "sampling_params": [{}, {}]}, "sampling_params", "list of 1"),
    (GENERATE, {"text": "x", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len", "-2"),
    (GENERATE, {"text": "x", "return_logprob": True, "token_ids_logprob": [-1]}, "token_ids_logprob", "-1"),
    (GENERATE, {"text": "x", "return_logprob": True, "token_ids_logprob": [5] * 1025}, "token_ids_logprob", "1,024"),
    (GENERATE, {"text": "x", "token_ids_logprob": "5"}, "token_ids_logprob", "integers"),
    (GENERATE, {"text": "x", "token_ids_logprob": [[5], [6]]}, "token_ids_logprob", "list of 1"),
    (GENERATE, {"text": "x", "return_logprob": True, "top_logprobs_num": 21}, "logprobs", "20"),
    (GENERATE, {"text": "x", "return_logprob": True, "top_logprobs_num": -1}, "logprobs", "0"),
    (GENERATE, {"text": "x", "cache_salt": 5}, "cache_salt", "a string"),
    (GENERATE, {"text": "x", "image_data": "http://x/y.png"}, "image_data", "not supported"),
    (GENERATE, {"text": "x", "lora_path": "adapter"}, "lora_path", "not supported"),
    (GENERATE, _sampling(max_new_tokens=-1), "max_new_tokens", "at least 0"),
    (GENERATE, _sampling(max_new_tokens=True), "sampling_params.max_new_tokens", "an integer"),
    (GENERATE, _sampling(max_new_tokens="5"), "sampling_params.max_new_tokens", "an integer"),
    (GENERATE, _sampling(max_new_tokens=1.5), "sampling_params.max_new_tokens", "an integer"),
    (GENERATE, _sampling(temperature="hot"), "sampling_params.temperature", "a number"),
    (GENERATE, _sampling(temperature=True), "sampling_params.temperature", "a number"),
    (GENERATE, _sampling(temperature=-0.1), "temperature", "-0.1"),
    (GENERATE, _sampling(top_p=0), "top_p", "(0, 1]"),
    (GENERATE, _sampling(top_p=1.5), "top_p", "1.5"),
    (GENERATE, _sampling(top_k=-2), "top_k", "-2"),
    (GENERATE, _sampling(min_p=2), "min_p", "[0, 1]"),
    (GENERATE, _sampling(sampling_seed=2**63), "seed", "seed"),
    (GENERATE, _sampling(stop=5), "sampling_params.stop", "strings"),
    (GENERATE, _sampling(stop=[""]), "stop", "empty"),
    (GENERATE, _sampling(stop=["s"] * 33), "stop", "32"),
    (GENERATE, _sampling(stop="s" * 1025), "stop", "1,024"),
    (GENERATE, _sampling(stop_token_ids=[True]), "sampling_params.stop_token_ids", "integers"),
    (GENERATE, _sampling(stop_token_ids=[-5]), "stop_token_ids", "-5"),
    (GENERATE, _sampling(stop_token_ids=5), "sampling_params.stop_token_ids", "integers"),
    (GENERATE, _sampling(stop_regex=5), "sampling_params.stop_regex", "strings"),
    (GENERATE, _sampling(stop_regex="(a"), "stop_regex", "RE2"),
    (GENERATE, _sampling(stop_regex="a*"), "stop_regex", "empty"),
    (GENERATE, _sampling(stop_regex="a" * 257), "stop_regex", "256"),
    (GENERATE, _sampling(n=0), "sampling_params.n", "[1, 128]"),
    (GENERATE, _sampling(n=129), "sampling_params.n", "129"),
    (GENERATE, _sampling(n="2"), "sampling_params.n", "an integer"),
    (GENERATE, _sampling(regex="(("), "sampling_params.regex", "unclosed"),
    (GENERATE, _sampling(regex="(a{1000}){1000}"), "sampling_params.regex", "1,000 times"),
    (GENERATE, _sampling(regex=7), "sampling_params.regex", "a string"),
    (GENERATE, _sampling(json_schema="{"), "sampling_params.json_schema", "no JSON"),
    (GENERATE, _sampling(json_schema='{"type": 5}'), "sampling_params.json_schema", "can't be followed"),
    (GENERATE, _sampling(ebnf="start: nowhere"), "sampling_params.ebnf", "can't be followed"),
    (GENERATE, _sampling(structural_tag="{}"), "sampling_params.structural_tag", "structures"),
    (GENERATE, _sampling(regex="a", json_schema="{}"), "sampling_params.regex", "Send one"),
    (GENERATE, _sampling(regex="a", min_new_tokens=2), "min_new_tokens", "sampling_params.regex"),
    (GENERATE, _sampling(frequency_penalty=2.5), "frequency_penalty", "[-2, 2]"),
    (GENERATE, _sampling(presence_penalty=-2.5), "presence_penalty", "[-2, 2]"),
    (GENERATE, _sampling(repetition_penalty=0), "repetition_penalty", "(0, 2]"),
    (GENERATE, _sampling(repetition_penalty="x"), "sampling_params.repetition_penalty", "a number"),
    (GENERATE, _sampling(min_new_tokens=-1), "min_new_tokens", "-1"),
    (GENERATE, _sampling(min_new_tokens=3, max_new_tokens=2), "min_new_tokens", "[0, 2]"),
    (GENERATE, _sampling(logit_bias=[1]), "sampling_params.logit_bias", "an object"),
    (GENERATE, _sampling(logit_bias={"five": 1}), "sampling_params.logit_bias", "token ids"),
    (GENERATE, _sampling(logit_bias={"-1": 1}), "sampling_params.logit_bias", "token ids"),
    (GENERATE, _sampling(logit_bias={"9" * 5000: 1}), "sampling_params.logit_bias", "token ids"),
    (GENERATE, _sampling(logit_bias={"5": "x"}), "sampling_params.logit_bias", "numbers"),
    (GENERATE, _sampling(logit_bias={"5": True}), "sampling_params.logit_bias", "numbers"),
    (GENERATE, _sampling(logit_bias={"5": 101}), "logit_bias", "[-100, 100]"),
    (GENERATE, _sampling(logit_bias={"9999999999": 1}), "logit_bias", "9999999999"),
    (COMPLETIONS, {}, "prompt", "empty"),
    (COMPLETIONS, {"prompt": ""}, "prompt", "empty"),
    (COMPLETIONS, {"prompt": []}, "prompt", "empty"),
    (COMPLETIONS, {"prompt": [[]]}, "prompt", "empty"),
    (COMPLETIONS, {"prompt": {"a": 1}}, "prompt", "a string"),
    (COMPLETIONS, {"prompt": ["x", 5]}, "prompt", "a string"),
    (COMPLETIONS, {"prompt": [5, "x"]}, "prompt", "a string"),
    (COMPLETIONS, {"prompt": [True]}, "prompt", "a string"),
    (COMPLETIONS, {"prompt": [999]}, "prompt", "999"),
    (COMPLETIONS, {"prompt": "x", "model": 5}, "model", "a string"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": -1}, "max_new_tokens", "-1"),
    (COMPLETIONS, {"prompt": "x", "logprobs": True}, "logprobs", "an integer"),
    (COMPLETIONS, {"prompt": "x", "logprobs": 21, "echo": True}, "logprobs", "20"),
    (COMPLETIONS, {"prompt": "x", "suffix": "y"}, "suffix", "not supported"),
    (COMPLETIONS, {"prompt": "x", "best_of": 2}, "best_of", "not supported"),
    (COMPLETIONS, {"prompt": "x", "n": 0}, "n", "[1, 128]"),
    (COMPLETIONS, {"prompt": "x", "stream_options": 5}, "stream_options", "an object"),
    (CHAT, {}, "messages", "empty"),
    (CHAT, {"messages": []}, "messages", "empty"),
    (CHAT, {"messages": "hi"}, "messages", "a list"),
    (CHAT, {"messages": ["hi"]}, "messages[0]", "an object"),
    (CHAT, {"messages": [{"content": "hi"}]}, "messages[0].role", "missing"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a string"),
    (CHAT, {"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content[0]", "an object"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
        "messages[0].content[0].type",
        "text only",
    ),
    (CHAT, {"messages": HI, "tools": [{"type": "function"}]}, "tools", "not supported"),
    (CHAT, {"messages": HI, "response_format": {"type": "yaml"}}, "response_format.type", "json_schema"),
    (
        CHAT,
        {"messages": HI, "response_format": {"type": "json_schema"}},
        "response_format.json_schema.schema",
        "a JSON schema",
    ),
    (CHAT, {"messages": HI, "response_format": {"type": "json_object"}, "regex": "a"}, "response_format", "Send one"),
    (CHAT, {"messages": HI, "structured_outputs": {"regex": "a", "choice": ["b"]}}, None, "must hold one"),
    (CHAT, {"messages": HI, "top_logprobs": 2}, "top_logprobs", "logprobs"),
    (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 21}, "logprobs", "20"),
    (CHAT, {"messages": HI, "logprobs": 1}, "logprobs", "true or false"),
    (CHAT, {"messages": HI, "n": 129}, "n", "[1, 128]"),
    (CHAT, {"messages": HI, "max_tokens": -5}, "max_new_tokens", "-5"),
    (CHAT, {"messages": HI, "frequency_penalty": 3}, "frequency_penalty", "[-2, 2]"),
    (CHAT, {"messages": HI, "logit_bias": {"5": -101}}, "logit_bias", "-101"),
    (CHAT, {"messages": HI, "min_tokens": 6, "max_tokens": 5}, "min_new_tokens", "[0, 5]"),
    (CHAT, {"messages": HI, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "messages"),
    (
        CHAT,
        {"messages": HI, "continue_final_message": True, "add_generation_prompt": True},
        "add_generation_prompt",
        "both",
    ),
    ("/abort_request", {}, "rid", "missing"),
    ("/tokenize", {}, "prompt", "a string"),
    ("/detokenize", {"tokens": [1] * 131_073}, "tokens", "at most 131,072"),
    ("/detokenize", {}, "tokens", "a list of integers"),
    ("/detokenize", {"tokens": [-1]}, "tokens", "[0, 258]"),
]


async def test_bad_input_is_a_400_that_names_field_and_limit(server: Server, http: aiohttp.ClientSession) -> None:
    for route, body, field, part in BAD:
        data = body if isinstance(body, bytes) else json.dumps(body)
        async with http.post(route, data=data, headers={"Content-Type": "application/json"}) as response:
            answer = await response.json()
            assert response.status == 400, (route, body, answer)
            error = answer["error"]
            assert error["param"] == field, (route, body, answer)
            assert part in error["message"], (route, body, answer)
            assert error["type"] == "invalid_request_error"
    async with http.post("/generate", json={"text": "x"}) as response:
        assert response.status == 200
    assert server.client.num_open == 0


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


async def test_an_unknown_field_is_accepted_and_logged_once(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="runtime"):
        for _ in range(2):
            async with http.post("/generate", json={"text": "x", "novelty": 1, "sampling_params": {"zest": 2}}) as r:
                assert r.status == 200
    assert [record.getMessage() for record in caplog.records] == [
        'unknown field ignored: "sampling_params.zest"',
        'unknown field ignored: "novelty"',
    ]


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


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_body_that_is_not_what_its_encoding_says_is_a_400(http: aiohttp.ClientSession, encoding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    async with http.post("/generate", data=b"no such thing", headers=headers) as response:
        assert response.status == 400
        assert encoding in (await response.json())["error"]["message"]


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


async def test_a_key_is_asked_for_everywhere_but_at_health_and_metrics(tmp_path: Path) -> None:
    config = HttpConfig(port=0, api_key="sésame")
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        for path in ("/health", "/ready", "/metrics"):
            async with http.get(path) as response:
                assert response.status == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sésame"}):
            async with http.get("/v1/models", headers=headers) as response:
                assert response.status == 401
                assert (await response.json())["error"]["code"] == "invalid_api_key"
        async with http.get("/v1/models", headers={"Authorization": "Bearer sésame"}) as response:
            assert response.status == 200


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


async def test_health_is_false_when_the_scheduler_says_what_hangs(server: Server, http: aiohttp.ClientSession) -> None:
    async with http.get("/health") as response:
        assert response.status == 200
    server.scheduler.stats = Stats(stuck="step 5 has been outstanding for 40 s")
    await server.client.control("stats")
    async with http.get("/health") as response:
        assert response.status == 503
        assert "step 5" in (await response.json())["error"]["message"]
