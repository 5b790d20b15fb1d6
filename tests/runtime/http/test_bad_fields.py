"""Values of the wrong type, range or shape: each is a 400 that names field and limit."""

from __future__ import annotations

import json

import aiohttp

from tests.fakes import Server

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
    (GENERATE, {"text": "x", "priority": 1001}, "priority", "[-1000, 1000]"),
    (GENERATE, {"text": "x", "priority": "high"}, "priority", "an integer"),
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
    (GENERATE, _sampling(stop_regex=["a"] * 9), "stop_regex", "9 patterns; at most 8"),
    (GENERATE, _sampling(logit_bias=dict.fromkeys(map(str, range(65_537)), 1)), "logit_bias", "at most 65,536"),
    (GENERATE, {"text": ["x"] * 33, "sampling_params": {"n": 128}}, "n", "4,224 answers to all prompts together"),
    (COMPLETIONS, {"prompt": ["x"] * 33, "n": 128}, "n", "at most 4,096"),
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
