"""Keys, pages of other origins, and limits of what a connection may send."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import aiohttp
import anthropic
import pytest

from runtime.config import HttpConfig
from runtime.http import normaliser
from runtime.http.explained import CACHE_HEADER, EXPLAIN_HEADER
from runtime.http.fields import IGNORED_HEADER
from tests.fakes import Server, running_server

PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type, x-mine"}


async def _status(
    http: aiohttp.ClientSession, method: str, path: str, headers: Mapping[str, str], body: object = None
) -> int:
    async with http.request(method, path, headers=headers, json=body) as response:
        if response.status == 401:
            assert (await response.json())["error"]["code"] == "invalid_api_key"
            assert response.headers["WWW-Authenticate"] == "Bearer"
        return response.status


async def test_a_key_is_asked_for_everywhere_but_at_health_and_metrics(tmp_path: Path) -> None:
    config = HttpConfig(port=0, api_key="sésame")
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        for path in ("/health", "/ready", "/live", "/metrics"):
            assert await _status(http, "GET", path, {}) == 200
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "sésame"},
            {"x-api-key": "Bearer sésame"},
        ):
            for path in ("/v1/models", "/openapi.json", "/server_info", "/flush_cache"):
                assert await _status(http, "GET", path, headers) == 401, (path, headers)
        for headers in (
            {"Authorization": "Bearer sésame"},
            {"authorization": "bearer sésame"},
            {"x-api-key": "sésame"},
        ):
            assert await _status(http, "GET", "/v1/models", headers) == 200
            assert await _status(http, "POST", "/generate", headers, {"text": "x"}) == 200
            assert await _status(http, "POST", "/flush_cache", headers) == 200


async def test_with_an_admin_key_only_its_bearer_may_do_what_operators_do(tmp_path: Path) -> None:
    config = HttpConfig(port=0, api_key="user", admin_api_key="admin")
    user, admin = {"x-api-key": "user"}, {"Authorization": "Bearer admin"}
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        for method, path, body in (
            ("POST", "/flush_cache", None),
            ("GET", "/flush_cache", None),
            ("POST", "/abort_request", {"abort_all": True}),
            ("POST", "/drain", None),
            ("DELETE", "/drain", None),
        ):
            assert await _status(http, method, path, user, body) == 403, path
            for stranger in ({}, {"x-api-key": "wrong"}):
                assert await _status(http, method, path, stranger, body) == 401, path
            assert await _status(http, method, path, admin, body) == 200, path
        for headers in (user, admin):
            assert await _status(http, "POST", "/generate", headers, {"text": "x"}) == 200
        async with http.get("/server_info", headers=user) as response:
            assert not (await response.json()).keys() & {"api_key", "admin_api_key"}


async def test_a_user_s_key_where_an_operator_s_is_needed_is_told_apart_from_a_wrong_one(tmp_path: Path) -> None:
    config = HttpConfig(port=0, api_key="user", admin_api_key="admin")
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        async with http.post("/flush_cache", headers={"x-api-key": "user"}) as response:
            assert response.status == 403
            error = (await response.json())["error"]
        assert (error["type"], error["code"]) == ("permission_error", "admin_key_needed")
        assert "--admin-api-key" in error["message"]


@pytest.mark.parametrize(
    "origins", ["foo", "https://a.example/", "a.example", "https://a.example, b", "**", "https://"]
)
def test_what_is_no_origin_is_refused_at_start(origins: str) -> None:
    with pytest.raises(ValueError, match=r"--cors-origins must be \* or origins such as"):
        HttpConfig(cors_origins=origins)


def test_origins_are_taken_as_browsers_send_them() -> None:
    config = HttpConfig(
        cors_origins="https://a.example:8443 http://localhost:3000,null,http://[::1]:80, vscode-webview://x"
    )
    assert len(config.origins) == 5
    assert HttpConfig(cors_origins="*").origins == {"*"}


async def test_an_admin_key_alone_leaves_the_rest_open(tmp_path: Path) -> None:
    config = HttpConfig(port=0, admin_api_key="admin")
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        assert await _status(http, "POST", "/generate", {}, {"text": "x"}) == 200
        assert await _status(http, "POST", "/flush_cache", {}) == 401


async def test_pages_of_allowed_origins_may_read_answers_and_streams(tmp_path: Path) -> None:
    config = HttpConfig(port=0, cors_origins="https://a.example, https://b.example", api_key="k")
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        origin = {"Origin": "https://b.example"}
        async with http.options("/generate", headers=origin | PREFLIGHT) as response:
            assert response.status == 204
            assert response.headers["Access-Control-Allow-Origin"] == "https://b.example"
            assert response.headers["Access-Control-Allow-Headers"] == "content-type, x-mine"
            assert "POST" in response.headers["Access-Control-Allow-Methods"]
        for body, status in (({"text": "x"}, 200), ({"text": "x", "stream": True}, 200), ({}, 400)):
            wish = origin | {"x-api-key": "k", EXPLAIN_HEADER: "1"}
            async with http.post("/generate", json=body, headers=wish) as response:
                assert response.status == status
                assert response.headers["Access-Control-Allow-Origin"] == "https://b.example"
                shown = set(response.headers["Access-Control-Expose-Headers"].split(", "))
                assert shown == {"X-Request-Id", "Retry-After", CACHE_HEADER, normaliser.HEADER, IGNORED_HEADER}
                assert "X-Request-Id" in response.headers
        async with http.post("/generate", json={"text": "x"}, headers=origin) as response:
            assert response.status == 401  # which the page may read too, to say so
            assert response.headers["Access-Control-Allow-Origin"] == "https://b.example"
        async with http.get("/v1/models", headers={"Origin": "https://c.example", "x-api-key": "k"}) as response:
            assert "Access-Control-Allow-Origin" not in response.headers
        async with http.options("/generate", headers={"Origin": "https://c.example"} | PREFLIGHT) as response:
            assert "Access-Control-Allow-Origin" not in response.headers


async def test_without_the_flag_no_page_reads_and_none_from_elsewhere_wishes(
    server: Server, http: aiohttp.ClientSession
) -> None:
    elsewhere = {"Origin": "https://evil.example"}
    async with http.get("/v1/models", headers=elsewhere) as response:
        assert "Access-Control-Allow-Origin" not in response.headers
    for method, path in (("POST", "/flush_cache"), ("POST", "/drain"), ("DELETE", "/drain")):
        assert await _status(http, method, path, elsewhere) == 400
        assert await _status(http, method, path, {"Origin": server.url}) == 200
    # an image on a page sends no origin, only this
    assert await _status(http, "GET", "/flush_cache", {"Sec-Fetch-Site": "cross-site"}) == 400


async def test_a_page_whose_name_was_led_to_this_machine_is_no_operators(
    server: Server, http: aiohttp.ClientSession
) -> None:
    port = server.port
    for host in (f"evil.example:{port}", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[evil"):
        assert await _status(http, "POST", "/flush_cache", {"Host": host}) == 400, host
        async with http.get("/doctor", headers={"Host": host}) as response:
            assert (await response.json())["with_text"] is False, host
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "LOCALHOST", "axil.localhost"):
        assert await _status(http, "POST", "/flush_cache", {"Host": host}) == 200, host
        async with http.get("/doctor", headers={"Host": host}) as response:
            assert (await response.json())["with_text"] is True, host


async def test_who_asks_through_a_proxy_is_told_how(http: aiohttp.ClientSession) -> None:
    async with http.post("/flush_cache", headers={"Host": "llm.example"}) as response:
        message = (await response.json())["error"]["message"]
    for words in ('Host is "llm.example"', "have it send Host: localhost", "--admin-api-key"):
        assert words in message, message


async def test_with_a_key_the_name_does_not_matter(tmp_path: Path) -> None:
    async with (
        running_server(tmp_path, config=HttpConfig(port=0, api_key="k")) as server,
        aiohttp.ClientSession(server.url, headers={"x-api-key": "k", "Host": "llm.example"}) as http,
    ):
        assert await _status(http, "POST", "/flush_cache", {}) == 200


async def test_that_all_pages_may_read_does_not_mean_that_all_may_wish(tmp_path: Path) -> None:
    config = HttpConfig(port=0, cors_origins="*")
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        elsewhere = {"Origin": "https://any.example"}
        async with http.get("/v1/models", headers=elsewhere) as response:
            assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert await _status(http, "POST", "/flush_cache", elsewhere) == 400


async def test_heads_that_are_too_large_are_a_400(server: Server) -> None:
    async with aiohttp.ClientSession(server.url) as http:
        for headers in ({"X-Long": "x" * 10_000}, {f"X-{i}": "x" for i in range(300)}):
            async with http.get("/health", headers=headers) as response:
                assert response.status == 400
        async with http.get("/health") as response:
            assert response.status == 200


async def test_anthropics_client_is_told_of_a_wrong_key_in_its_own_words(tmp_path: Path) -> None:
    config = HttpConfig(port=0, api_key="user")
    async with (
        running_server(tmp_path, config=config) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="wrong", max_retries=0) as client,
    ):
        with pytest.raises(anthropic.AuthenticationError) as raised:
            await client.messages.create(model="fake", max_tokens=9, messages=[{"role": "user", "content": "x"}])
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["type"] == "error"
    assert raised.value.body["error"]["type"] == "authentication_error"
