"""Chromium, driven by Playwright, on a page that may ask its own server and nobody else."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

from tests.deadline import DEADLINE_S

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
DEADLINE_MS = 1000 * DEADLINE_S
CHROMIUM = shutil.which("chromium")


@dataclass(slots=True)
class View:
    """One open page: `errors` are what its console has complained of, `foreign` what it wanted of other hosts."""

    page: Page
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def read(self, script: str, argument: object = None) -> Any:  # noqa: ANN401 - any JSON
        return self.page.evaluate(script, argument)

    def wait(self, script: str, argument: object = None) -> None:
        """Until `script` says true. Asked from outside: the page's policy lets nobody evaluate text inside of it."""
        deadline = time.monotonic() + DEADLINE_MS / 1000
        while not self.page.evaluate(script, argument):
            assert time.monotonic() < deadline, f"not within {DEADLINE_MS} ms: {script}"
            self.page.wait_for_timeout(20)

    def hover_node(self, index: int) -> None:
        """Point at a node of the tree."""
        self.wait("index => axilView.icicle.target == null && axilView.icicle.outline.count > index", index)
        box = self.read("index => axilView.icicle.box(index)", index)
        place = self.page.locator("#tree").bounding_box()
        assert place is not None
        x = place["x"] + (max(box["left"], 0) + min(box["right"], place["width"])) / 2
        self.page.mouse.move(x, place["y"] + box["top"] + box["height"] / 2)

    def use_key(self, key: str) -> None:
        self.page.click("#key")
        self.page.fill("#key-value", key)
        self.page.click("#key-form button[type=submit]")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("NO CHROMIUM HERE, so the live view is NOT TESTED: apt-get install chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        yield running
        running.close()


def opened(running: Browser, url: str) -> View:
    """The live view of the server at `url`, in a window of its own."""
    page = running.new_page(viewport={"width": 1440, "height": 1000})
    page.set_default_timeout(DEADLINE_MS)
    view = View(page)

    def on_route(route: Route) -> None:
        if urlsplit(route.request.url).netloc == urlsplit(url).netloc:
            route.continue_()
        else:
            view.foreign.append(route.request.url)
            route.abort()

    page.route("**/*", on_route)
    page.on(
        "console", lambda message: view.errors.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: view.errors.append(str(error)))
    page.goto(f"{url}/ui")
    return view
