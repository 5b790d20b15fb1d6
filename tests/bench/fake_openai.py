"""A small server with OpenAI's routes and `/generate`: a token is a word, and every prompt seen before is cached.

Token ids in a prompt are words that are numbers; the answer's token ids are 9001, 9002, …
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.deadline import DEADLINE_S


@dataclass(slots=True)
class FakeOpenAI:
    """What the server does, by the number of the generation request, and what it has seen."""

    trouble: dict[int, str] = field(default_factory=dict)
    has_flush: bool = True
    reports_cached: bool = True
    tells_token_ids: bool = True
    names_models: bool = True
    metrics: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    routes: list[str] = field(default_factory=list)
    forms: list[tuple[object, object]] = field(default_factory=list)
    json_answer: str = ""
    on_prompt: Callable[[], object] = lambda: None
    num_open: int = 0
    most_open: int = 0
    num_flushes: int = 0
    num_scrapes: int = 0
    known: list[list[str]] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application()
        if self.names_models:
            app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_post("/generate", self._generate)
        if self.has_flush:
            app.router.add_post("/flush_cache", self._flush)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        self.num_scrapes += 1
        if not self.metrics:
            return web.Response(status=404)
        return web.Response(text=self.metrics.pop(0) if len(self.metrics) > 1 else self.metrics[0])

    async def _flush(self, request: web.Request) -> web.Response:
        self.num_flushes += 1
        self.known.clear()
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        trouble = self.trouble.get(len(self.prompts), "")
        self.routes.append(request.path)
        prompt = body.get("prompt") or body.get("text") or body.get("input_ids")
        if prompt is None:
            prompt = " ".join(message["content"] for message in body["messages"])
        if isinstance(prompt, list):
            prompt = " ".join(map(str, prompt))
        self.prompts.append(prompt)
        self.on_prompt()
        if trouble == "refuse":
            return web.json_response({"error": {"message": "prompt is too long"}}, status=400)
        if trouble == "hang":
            await asyncio.Event().wait()
        words = prompt.split()
        cached = max((_common(words, other) for other in self.known), default=0)
        self.known.append(words)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            return await self._stream(request, body, trouble, words=words, cached=cached)
        finally:
            self.num_open -= 1

    async def _stream(
        self, request: web.Request, body: dict[str, object], trouble: str, *, words: list[str], cached: int
    ) -> web.StreamResponse:
        if not body.get("stream"):
            return web.json_response({"choices": [{"text": " answer1"}]})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sampling = body.get("sampling_params")
        max_tokens = int(str(sampling["max_new_tokens"] if isinstance(sampling, dict) else body["max_tokens"]))
        schema = sampling.get("json_schema") if isinstance(sampling, dict) else body.get("response_format")
        if schema:
            self.forms.append((schema, (sampling if isinstance(sampling, dict) else body)["ignore_eos"]))
            max_tokens = 1
        usage: dict[str, object] = {"prompt_tokens": len(words), "completion_tokens": max_tokens}
        is_ids = isinstance(body.get("prompt") or body.get("input_ids"), list)
        for number in range(max_tokens + 1):
            if request.path == "/generate":
                text = "".join(self._piece(each) for each in range(1, number + 1))
                ids = [9000 + each for each in range(1, number + 1)]
                await _send(
                    response, {"text": text, "output_ids": ids, "meta_info": {**usage, "cached_tokens": cached}}
                )
            else:
                await _send(response, {"choices": [self._choice(number, body)]})
            if number == 1 and trouble == "break":
                await _send(response, {"error": {"message": "the runner died"}})
            if number == 1 and trouble == "cut":
                return response
            await asyncio.sleep(0.001)
        said = (str(9000 + number) if is_ids else self._piece(number).strip() for number in range(1, max_tokens))
        self.known.append([*words, *said])
        if self.reports_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        if trouble != "no usage" and request.path != "/generate":
            await _send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    def _piece(self, number: int) -> str:
        return self.json_answer or f" answer{number}"

    def _choice(self, number: int, body: dict[str, object]) -> dict[str, object]:
        piece = self._piece(number) if number else ""
        choice: dict[str, object] = {"text": piece} if "prompt" in body else {"delta": {"content": piece}}
        if self.tells_token_ids and body.get("return_token_ids"):
            choice["token_ids"] = [9000 + number] if number else []
        return choice


@contextmanager
def running(fake: FakeOpenAI) -> Iterator[str]:
    """Serve `fake` in a thread of its own; gives the URL."""
    address: list[str] = []
    is_up = threading.Event()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(fake.app(), shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address.append("http://{}:{}".format(*runner.addresses[0][:2]))
        is_up.set()
        await over.wait()
        await runner.cleanup()

    def main() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=main)
    thread.start()
    assert is_up.wait(DEADLINE_S)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(DEADLINE_S)


async def _send(response: web.StreamResponse, chunk: dict[str, object]) -> None:
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def _common(left: list[str], right: list[str]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count
