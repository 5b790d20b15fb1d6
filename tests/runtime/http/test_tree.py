"""What is cached, over HTTP: the tree's columns, and text for the admin key alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from radix.cache import PrefixCache
from runtime.config import HttpConfig
from tests.fakes import Server, running_server, text_ids
from tests.radix.serving import CHAT, OTHER, serve

PROMPT = "You are the assistant of a bicycle shop."


def filled() -> PrefixCache:
    cache = PrefixCache(num_pages=64, page_tokens=4)
    serve(cache, text_ids(PROMPT), CHAT)
    serve(cache, text_ids("elsewhere"), OTHER)
    return cache


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Server]:
    config = HttpConfig(port=0, api_key="user", admin_api_key="admin")
    async with running_server(tmp_path, config=config) as server:
        server.scheduler.cache = filled()
        yield server


async def test_the_tree_is_told_as_columns_with_salts_only_as_digests(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.cache = filled()
    async with http.get("/tree") as response:
        assert response.status == 200
        assert response.headers["Cache-Control"] == "no-store"
        tree = await response.json()
        assert "other" not in await response.text()
    nodes = tree["nodes"]
    assert sum(nodes["tokens"]) == len(PROMPT) + len("elsewhere")
    assert {len(values) for values in nodes.values()} == {tree["num_nodes"]} == {5}
    assert [space["salt_digest"] is None for space in tree["namespaces"]] == [True, False]
    assert tree["stats"]["page_tokens"] == 16
    assert tree["may_read_text"]


async def test_however_many_ask_in_a_second_the_scheduler_is_asked_once(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.cache = filled()

    async def ask() -> bytes:
        async with http.get("/tree") as response:
            return await response.read()

    answers = await asyncio.gather(*(ask() for _ in range(8)))
    assert len(set(answers)) == 1
    assert server.scheduler.num_outlines == 1


async def test_text_is_for_the_admin_key_and_lengths_for_every_key(guarded: Server) -> None:
    user, admin = {"x-api-key": "user"}, {"x-api-key": "admin"}
    async with aiohttp.ClientSession(guarded.url) as http:
        async with http.get("/tree") as response:
            assert response.status == 401
        async with http.get("/tree", headers=user) as response:
            tree = await response.json()
            assert not tree["may_read_text"]
            nodes = tree["nodes"]
            assert "bicycle" not in await response.text()
        longest = nodes["tokens"].index(max(nodes["tokens"]))
        query = {"page": str(nodes["page"][longest]), "digest": nodes["digest"][longest]}
        for headers, status in (({}, 401), (user, 403)):
            async with http.get("/tree/text", params=query, headers=headers) as response:
                assert response.status == status
                assert "bicycle" not in await response.text()
        async with http.get("/tree/text", params=query, headers=admin) as response:
            assert response.status == 200
            shown = await response.json()
        assert PROMPT.startswith(shown["text"])
        assert (shown["start"], shown["tokens"]) == (0, len(PROMPT) // 4 * 4)
        elsewhere = {"Origin": "https://evil.example"} | admin
        async with http.get("/tree/text", params=query, headers=elsewhere) as response:
            assert response.status == 400


async def test_the_text_of_a_node_that_is_gone_is_a_404_even_when_its_page_holds_something_else(
    server: Server, http: aiohttp.ClientSession
) -> None:
    server.scheduler.cache = filled()
    for query in ({"page": "0", "digest": "0" * 16}, {"page": "63", "digest": "0" * 16}):
        async with http.get("/tree/text", params=query) as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "not_cached"


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("/tree", {"under": "x"}, "under"),
        ("/tree", {"under": "-1"}, "under"),
        ("/tree/text", {"digest": "0"}, "page"),
        ("/tree/text", {"page": "1"}, "digest"),
    ],
)
async def test_a_wrong_question_is_a_400_that_names_it(
    http: aiohttp.ClientSession, path: str, query: dict[str, str], field: str
) -> None:
    async with http.get(path, params=query) as response:
        assert response.status == 400
        assert field in (await response.json())["error"]["message"]
