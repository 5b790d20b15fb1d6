"""sglang-router in front of two servers of axil. It runs where AXIL_CLIENTS names an environment that has it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bench.server import free_port
from tests.e2e.server import Server, wait_until
from tests.e2e.tiny_model import write_tiny_model

PYTHON = Path(os.environ.get("AXIL_CLIENTS", "/nowhere")) / "bin" / "python"

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="AXIL_CLIENTS names no environment with sglang-router; `make clients` makes one"
)


class Router:
    """The router and what it is asked; `url` is where it listens."""

    def __init__(self, directory: Path, workers: list[str], *flags: str) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log_path = directory / f"router-{port}.log"
        command = [str(PYTHON), "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--prometheus-port", str(free_port()), "--worker-urls", *workers, *flags]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        """Status and JSON (or text) of an answer; a body is sent by POST."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                status, text = reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        with contextlib.suppress(ValueError):
            return status, json.loads(text)
        return status, text

    def generate(self, text: str, *, max_new_tokens: int = 4) -> Any:  # noqa: ANN401 - any JSON
        sampling = {"max_new_tokens": max_new_tokens, "ignore_eos": True}
        status, answer = self.ask("/generate", {"text": text, "sampling_params": sampling})
        assert status == 200, answer
        return answer

    def num_healthy(self) -> int:
        """Workers that the router would send to."""
        with contextlib.suppress(OSError):
            status, answer = self.ask("/workers")
            if status == 200:
                return sum(worker["is_healthy"] for worker in answer["workers"])
        return 0

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def servers(model: Path, tmp_path: Path) -> Iterator[list[Server]]:
    running = [Server(tmp_path, str(model), "--dtype", "float32", "--max-total-tokens", "8000") for _ in range(2)]
    try:
        yield [server.wait_ready() for server in running]
    finally:
        for server in running:
            server.stop()


@pytest.fixture
def route(servers: list[Server], tmp_path: Path) -> Iterator[Callable[..., Router]]:
    """Starts routers in front of the two servers, and stops them."""
    routers: list[Router] = []

    def start(*flags: str) -> Router:
        urls = [f"http://127.0.0.1:{server.port}" for server in servers]
        routers.append(Router(tmp_path, urls, *flags))
        wait_until(lambda: routers[-1].num_healthy() == 2, "both workers are healthy", within_s=90)
        return routers[-1]

    yield start
    for router in routers:
        router.stop()


def _num_refused(server: Server) -> int:
    """Requests for /generate that were answered 400."""
    lines = server.get("/metrics").body.decode().splitlines()
    counts = [line for line in lines if line.startswith("axil_http_responses_total{") and 'status="400"' in line]
    return sum(int(float(line.rpartition(" ")[2])) for line in counts if '"/generate"' in line)


def test_prompts_go_where_their_prefix_is_cached(servers: list[Server], route: Callable[..., Router]) -> None:
    router = route("--policy", "cache_aware")
    prompts = [f"{name * 60} and so on" for name in "abcdefgh"]
    with ThreadPoolExecutor(len(prompts)) as pool:  # together, so that the load is shared out
        list(pool.map(lambda prompt: router.generate(prompt, max_new_tokens=400), prompts))
    seen = [server.figures()["prompt_tokens_total"] for server in servers]
    assert all(seen), f"each worker has some of the prompts: {seen}"
    for prompt in prompts:
        meta = router.generate(f"{prompt}, again")["meta_info"]
        assert meta["cached_tokens"] >= len(prompt) - 1, "it was sent to the worker that knows it"


def test_all_apis_pass_and_a_bad_request_is_not_tried_again(
    servers: list[Server], route: Callable[..., Router]
) -> None:
    router = route("--policy", "power_of_two")
    status, models = router.ask("/v1/models")
    assert status == 200
    name = models["data"][0]["id"]
    chat = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"model": name, "prompt": "Hi", "max_tokens": 4}),
        ("/generate", {"input_ids": [72, 105], "sampling_params": {"max_new_tokens": 4}}),
    ):
        status, answer = router.ask(path, body)
        assert status == 200, (path, answer)
    status, answer = router.ask("/generate", {"text": "x", "sampling_params": {"temperature": -5}})
    assert status == 400, answer
    assert "temperature" in json.dumps(answer)
    assert sum(_num_refused(server) for server in servers) == 1
    status, answer = router.ask("/flush_cache", {})
    assert status == 200, answer
    for server in servers:
        assert server.figures()["cached_pages"] == 0
        server.assert_idle_and_whole()


def test_a_worker_that_dies_is_left_out_until_it_is_back(
    servers: list[Server], route: Callable[..., Router], model: Path, tmp_path: Path
) -> None:
    flags = (
        "--health-check-interval-secs",
        "1",
        "--health-failure-threshold",
        "2",
        "--health-success-threshold",
        "1",
        "--cb-timeout-duration-secs",
        "2",
    )
    router = route("--policy", "round_robin", *flags)
    lost = servers[0]
    lost.process.kill()
    lost.process.wait()
    for i in range(12):  # the router tries another worker where one does not answer
        router.generate(f"prompt {i}")
    wait_until(lambda: router.num_healthy() == 1, "the dead one is left out", within_s=60)
    back = Server(tmp_path, str(model), "--dtype", "float32", "--max-total-tokens", "8000", "--port", str(lost.port))
    try:
        back.wait_ready()
        wait_until(lambda: router.num_healthy() == 2, "it is back", within_s=60)
        asked = itertools.count()
        wait_until(
            lambda: router.generate(f"again {next(asked)}") and back.figures()["prompt_tokens_total"] > 0,
            "it has work",
            within_s=60,
        )
    finally:
        back.stop()
    servers[1].assert_idle_and_whole()
