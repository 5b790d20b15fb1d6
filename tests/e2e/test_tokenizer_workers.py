"""Several tokenizers on one port answer as one server, and die as one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deadline import DEADLINE_S
from tests.e2e.server import Server, wait_until
from tests.e2e.test_processes import OpenStream
from tests.e2e.tiny_model import write_tiny_model
from tests.processes import parts_of

pytestmark = pytest.mark.e2e

NUM_WORKERS = 2
ASKED = 20
"""Each question is asked so often on connections of its own that every tokenizer gets it, but once in 500,000 runs."""

Start = Callable[..., Server]


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Of a server whose answers can be long."""
    model = write_tiny_model(tmp_path_factory.mktemp("long") / "model", context_tokens=4096)
    pool = ("--dtype", "float32", "--max-total-tokens", "60000")
    return (str(model), *pool, "--tokenizer-workers", str(NUM_WORKERS))


@pytest.fixture(scope="module")
def server(flags: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("workers"), *flags)
    try:
        yield server.wait_ready()
        assert server.stop() == 0
    finally:
        server.stop()


def _tokenizers(server: Server) -> list[int]:
    return [pid for name, pid in parts_of(server.process.pid).items() if name.startswith("runtime")]


def test_one_scrape_counts_the_requests_of_all_tokenizers(server: Server) -> None:
    assert len(_tokenizers(server)) == NUM_WORKERS
    before = server.metric("axil_e2e_request_latency_seconds_count")
    for _ in range(ASKED):
        server.generate("a", max_new_tokens=1)
    counts = {server.metric("axil_e2e_request_latency_seconds_count") for _ in range(ASKED)}
    assert counts == {before + ASKED}


def test_an_id_is_taken_and_aborted_whichever_tokenizer_has_it(server: Server) -> None:
    stream = OpenStream(server, rid="mine")
    body = {"text": "x", "rid": "mine", "sampling_params": {"max_new_tokens": 1}}
    for _ in range(ASKED):
        reply = server.post("/generate", body)
        assert reply.status == 400
        assert "mine" in reply.json["error"]["message"]
    assert stream.ended_s is None
    assert {server.get("/drain").json["open_requests"] for _ in range(ASKED)} == {1}
    assert server.post("/abort_request", {"rid": "mine"}).json == {"aborted": 1}
    stream.thread.join(DEADLINE_S)
    assert b'"abort"' in stream.received
    server.assert_idle_and_whole()


def test_a_drain_holds_for_all_tokenizers_until_it_ends(server: Server) -> None:
    assert server.post("/drain", {}).json["status"] == "draining"
    assert {server.get("/health").status for _ in range(ASKED)} == {503}
    assert server.delete("/drain").json["status"] == "serving"
    assert {server.get("/health").status for _ in range(ASKED)} == {200}


def test_when_a_tokenizer_is_killed_the_others_answer_what_is_open_and_the_server_ends(
    start: Start, flags: tuple[str, ...]
) -> None:
    server = start(*flags).wait_ready()
    streams = [OpenStream(server) for _ in range(ASKED)]
    os.kill(_tokenizers(server)[0], signal.SIGKILL)
    for stream in streams:
        stream.thread.join(DEADLINE_S)
        assert stream.ended_s is not None
    answered = [stream for stream in streams if b"the tokenizer 1 process died" in stream.received]
    assert answered
    assert all(b"[DONE]" in stream.received for stream in answered)
    assert server.process.wait(DEADLINE_S) == 1
    assert "the tokenizer 1 died (killed by SIGKILL)" in server.log
    wait_until(lambda: not _left(server), "the run directory is gone")


def _left(server: Server) -> list[Path]:
    return [path for path in server.tmp_dir.iterdir() if path.name.startswith("axil-")]
