"""What clients know and this server doesn't do: a 400 that says so and what to do, at every such path."""

from __future__ import annotations

import aiohttp
import openai
import pytest

from runtime.http.not_offered import ROUTES
from runtime.http.openapi import document
from tests.fakes import Server


async def test_each_says_that_it_is_not_offered_and_what_to_do(http: aiohttp.ClientSession) -> None:
    for route in ROUTES:
        async with http.request(route.method, route.path, json={"input": "x"}) as response:
            assert response.status == 400, route.path
            error = (await response.json())["error"]
        if route.path.startswith("/api/"):
            assert route.path in error, "Ollama's clients read a string"
            continue
        assert error["code"] == "not_supported"
        assert error["message"].startswith(f"{route.path} is not offered: ")
        assert error["message"].count(". ") >= 1, f"{route.path}: no remedy"


async def test_a_client_that_asks_for_embeddings_is_not_told_to_try_again(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        with pytest.raises(openai.BadRequestError, match="none that gives embeddings"):
            await client.embeddings.create(model="fake", input="x")


def test_the_document_promises_no_answer_of_them() -> None:
    paths = document(ROUTES, version="1")["paths"]
    assert isinstance(paths, dict)
    for path, operations in paths.items():
        for operation in operations.values():
            assert "200" not in operation["responses"], path
            assert operation["summary"].count("Not offered") == 1
