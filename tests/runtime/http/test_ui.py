"""The live view's files: whole, guarded by a policy, and the same for everybody."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urljoin

import aiohttp

from runtime.config import HttpConfig
from tests.fakes import running_server

FOLDER = Path(__file__).parents[3] / "runtime" / "ui"


async def test_the_page_comes_without_a_key_and_may_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    config = HttpConfig(port=0, api_key="user", admin_api_key="admin")
    async with running_server(tmp_path, config=config) as server, aiohttp.ClientSession(server.url) as http:
        for route in ("/ui", "/ui/"):
            async with http.get(route, allow_redirects=False) as response:
                assert response.status == 200
                policy = response.headers["Content-Security-Policy"]
                loaded = re.findall(r'(?:src|href)="([^"#]+)"', await response.text())
                assert {urljoin(route, each) for each in loaded} == {"/ui/icon.svg", "/ui/style.css", "/ui/app.js"}
        for path in FOLDER.iterdir():
            async with http.get(f"/ui/{path.name}") as response:
                assert response.status == 200
                assert await response.read() == path.read_bytes()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


async def test_a_file_that_has_not_changed_is_not_sent_again(http: aiohttp.ClientSession) -> None:
    async with http.get("/ui/app.js") as response:
        assert response.content_type == "text/javascript"
        etag = response.headers["ETag"]
    async with http.get("/ui/app.js", headers={"If-None-Match": etag}) as response:
        assert response.status == 304
        assert not await response.read()
    for name in ("nothing.js", "../ui.py", "%2e%2e/http/ui.py"):
        async with http.get(f"/ui/{name}") as response:
            assert response.status == 404


def test_no_file_names_another_host_and_every_import_is_there() -> None:
    for path in FOLDER.iterdir():
        text = path.read_text()
        foreign = [url for url in re.findall(r"https?://[^\s\"')]+", text) if not url.startswith("http://www.w3.org/")]
        assert not foreign, path
        for name in re.findall(r"from \"\./([^\"]+)\"", text):
            assert (FOLDER / name).exists(), f"{path.name} imports {name}"
