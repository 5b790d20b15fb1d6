"""Answers whose form is forced, from the real model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.e2e.server import Server

pytestmark = pytest.mark.e2e

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "population": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "is_capital": {"type": "boolean"},
    },
    "required": ["city", "population", "is_capital"],
    "additionalProperties": False,
}
MESSAGES = [{"role": "user", "content": "Tell me about Paris as JSON."}]


def _client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, timeout=300)


def test_a_chat_answers_with_json_that_suits_its_schema(shared_server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    with _client(shared_server) as client:
        for temperature in (0.0, 1.0):
            choice = client.chat.completions.create(
                model=client.models.list().data[0].id,
                messages=MESSAGES,
                response_format=form,
                temperature=temperature,
                max_tokens=200,
                seed=1,
            ).choices[0]
            assert choice.finish_reason == "stop"
            city = json.loads(choice.message.content)
            assert city.keys() == SCHEMA["properties"].keys()
            assert isinstance(city["is_capital"], bool)


def test_pieces_of_a_forced_answer_make_the_whole(shared_server: Server) -> None:
    with _client(shared_server) as client:
        stream = client.completions.create(
            model=client.models.list().data[0].id,
            prompt="A date: ",
            extra_body={"regex": "[0-9]{4}-[01][0-9]-[0-3][0-9]"},
            stream=True,
            max_tokens=30,
        )
        text = "".join(chunk.choices[0].text for chunk in stream)
    assert re.fullmatch("[0-9]{4}-[01][0-9]-[0-3][0-9]", text)


def test_forced_and_free_answers_share_a_batch_without_touching_each_other(shared_server: Server) -> None:
    with _client(shared_server) as client:

        def free(_: int) -> str:
            return (
                client.completions.create(
                    model=client.models.list().data[0].id, prompt="Once upon a time", temperature=0, max_tokens=12
                )
                .choices[0]
                .text
            )

        def forced(i: int) -> str:
            body = {"structured_outputs": {"choice": ["red", "green", "blue"]}}
            answer = client.completions.create(
                model=client.models.list().data[0].id, prompt=f"Colour {i}:", temperature=1, seed=i, extra_body=body
            )
            return answer.choices[0].text

        alone = free(0)
        with ThreadPoolExecutor(12) as pool:
            frees = [pool.submit(free, i) for i in range(4)]
            forceds = [pool.submit(forced, i) for i in range(8)]
            assert {future.result() for future in frees} == {alone}
            assert {future.result() for future in forceds} <= {"red", "green", "blue"}


LONG_NAMES = {
    "type": "object",
    "properties": {
        "name_of_the_city": {"type": "string", "maxLength": 12},
        "number_of_inhabitants": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "is_the_capital_of_its_country": {"type": "boolean"},
        "continent_where_it_lies": {"enum": ["Europe", "Asia", "Africa", "North America", "South America"]},
    },
    "required": [
        "name_of_the_city",
        "number_of_inhabitants",
        "is_the_capital_of_its_country",
        "continent_where_it_lies",
    ],
    "additionalProperties": False,
}
FORCING: list[dict[str, object]] = [
    {"json_schema": json.dumps(LONG_NAMES)},
    {"json_schema": json.dumps(LONG_NAMES), "temperature": 1.0, "sampling_seed": 7},
    {"json_schema": json.dumps({"type": "array", "items": LONG_NAMES, "minItems": 2, "maxItems": 2})},
    {"regex": r"The capital of France is (Paris|Lyon), which has [0-9]{1,8} inhabitants\. That is all\."},
    {"ebnf": 'root ::= "We have the following list:" (" item " [0-9])+ ". That was the list."'},
    {"json_schema": json.dumps(LONG_NAMES), "max_new_tokens": 9},
    {"json_schema": json.dumps(LONG_NAMES), "stop": "_inhab"},
    {"json_schema": json.dumps(LONG_NAMES), "stop": "s_of", "no_stop_trim": True},
    {"json_schema": json.dumps(LONG_NAMES), "repetition_penalty": 1.3, "frequency_penalty": 0.4},
]


@pytest.mark.parametrize("wish", FORCING, ids=str)
def test_forced_tokens_come_in_fewer_steps_and_are_those_that_come_one_by_one(
    shared_server: Server, wish: dict[str, object]
) -> None:
    # A logprob of each token needs each token's own step, so this is the same request without forced tokens.
    body = {
        "text": "A city: Paris, the capital of France.\nAs JSON: ",
        "sampling_params": {"temperature": 0, "max_new_tokens": 150} | wish,
    }
    one_by_one = shared_server.post("/generate", body | {"return_logprob": True}).json
    steps_before = shared_server.figures()["steps_total"]
    together = shared_server.post("/generate", body).json
    num_tokens = together["meta_info"]["completion_tokens"]
    assert together["output_ids"] == one_by_one["output_ids"]
    assert together["text"] == one_by_one["text"]
    for name in ("completion_tokens", "finish_reason", "prompt_tokens"):
        assert together["meta_info"][name] == one_by_one["meta_info"][name], name
    steps = shared_server.figures()["steps_total"] - steps_before
    assert steps < 0.8 * num_tokens
    shared_server.assert_idle_and_whole()


def test_streams_with_forced_tokens_beside_free_ones_are_those_of_each_alone(shared_server: Server) -> None:
    def answer(wish: dict[str, object]) -> str:
        body = {"text": "A city:", "sampling_params": {"temperature": 0, "max_new_tokens": 60} | wish}
        return str(shared_server.post("/generate", body).json["text"])

    wishes = [*FORCING[:5], {}, {}]
    alone = [answer(wish) for wish in wishes]
    with ThreadPoolExecutor(len(wishes)) as pool:
        assert list(pool.map(answer, wishes)) == alone
    shared_server.assert_idle_and_whole()


def test_the_embedded_model_calls_tools_with_the_example_template(start: Callable[..., Server]) -> None:
    city = {"type": "string", "enum": ["Paris", "Rome"]}
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    template = Path(__file__).parents[2] / "examples" / "tools.jinja"
    server = start("--chat-template", str(template), "--max-total-tokens", "4000").wait_ready()
    with _client(server) as client:
        choice = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": "Is it warm in Rome?"}],
            tools=[tool],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=100,
        ).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in city["enum"]
