"""Paths that are not there, most of which come of a wrong base URL."""

from __future__ import annotations

import aiohttp
import pytest

from runtime.http.unknown_path import meant_path
from tests.fakes import Server


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("/openai/v1/responses", "/v1/responses"),
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/completions", "/v1/completions"),
        ("/v1/generate", "/generate"),
        ("/v1/health", "/health"),
        ("/v1/chat/completion", "/v1/chat/completions"),
    ],
)
async def test_the_path_that_was_meant_is_named(http: aiohttp.ClientSession, path: str, meant: str) -> None:
    async with http.post(path, json={}) as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert f"Did you mean {meant}?" in error["message"]
    assert error["type"] in ("invalid_request_error", "not_found_error")


@pytest.mark.parametrize("path", ["/nowhere", "/v2", "/%00", "/" + "a" * 5000])
async def test_nothing_is_guessed_where_nothing_is_near(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as response:
        assert response.status == 404
        assert "Did you mean" not in (await response.json())["error"]["message"]


async def test_a_wrong_base_url_is_put_right(server: Server, http: aiohttp.ClientSession) -> None:
    for path in ("/chat/completions", "/v1/v1/chat/completions"):
        async with http.post(path, json={}) as response:
            assert f"the base URL {server.url}/v1," in (await response.json())["error"]["message"]


async def test_a_client_of_anthropic_s_api_reads_it_in_its_own_shape(
    server: Server, http: aiohttp.ClientSession
) -> None:
    async with http.post("/v1/v1/messages", json={}) as response:
        body = await response.json()
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    assert f"Anthropic's {server.url}." in body["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/v1/chat/completions", "POST"), ("PUT", "/drain", "DELETE or GET or HEAD or POST")],
)
async def test_the_methods_of_a_path_are_named(
    http: aiohttp.ClientSession, method: str, path: str, allowed: str
) -> None:
    async with http.request(method, path) as response:
        assert response.status == 405
        assert response.headers["Allow"] == allowed.replace(" or ", ", ")
        assert f"Send {allowed}." in (await response.json())["error"]["message"]


def test_a_long_path_costs_no_comparison() -> None:
    assert meant_path("/v1" * 100_000, ["/v1/models"]) is None
