"""A server that gives prepared answers and notes what it was asked, and over how many connections."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.deadline import DEADLINE_S


@dataclass(slots=True)
class Prepared:
    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    events: list[Any] | None = None
    breaks_off: bool = False
    is_done: bool = True
    text: str | None = None


@dataclass(slots=True)
class FakeServer:
    answers: dict[str, list[Prepared]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    peers: set[object] = field(default_factory=set)
    url: str = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, await request.json()))
        self.headers.append(dict(request.headers))
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        prepared = self.answers[request.path].pop(0)
        if prepared.text is not None:
            return web.Response(text=prepared.text)
        if prepared.events is None:
            return web.json_response(prepared.body, status=prepared.status, headers=prepared.headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in prepared.events:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        if prepared.breaks_off:
            request.transport.abort()
            return response
        if prepared.is_done:
            await response.write(b"data: [DONE]\n\n")
        return response


@contextmanager
def running(server: FakeServer) -> Iterator[FakeServer]:
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", server.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        stopped = asyncio.Event()
        stop.append(lambda: loop.call_soon_threadsafe(stopped.set))
        started.set()
        await stopped.wait()
        await runner.cleanup()

    stop: list[Any] = []
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(DEADLINE_S)
    try:
        yield server
    finally:
        stop[0]()
        thread.join(DEADLINE_S)
        loop.close()
