"""Answers whose form is forced, from the real model."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

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
