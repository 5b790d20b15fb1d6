"""Starting, dying and stopping of the real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deadline import DEADLINE_S
from tests.e2e.server import Server, wait_until
from tests.processes import is_alive

pytestmark = pytest.mark.e2e

SMALL = ("--max-total-tokens", "4000")

Start = Callable[..., Server]


class OpenStream:
    """A long streamed request, read by a thread until its connection ends."""

    def __init__(self, server: Server, *, num_tokens: int = 3000, rid: str | None = None) -> None:
        sampling = {"max_new_tokens": num_tokens, "ignore_eos": True}
        request = {"text": "Once upon a time", "sampling_params": sampling, "stream": True, "rid": rid}
        body = json.dumps(request).encode()
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        self.socket.sendall(
            b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        self.received = b""
        self.ended_s: float | None = None
        self.has_begun = threading.Event()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        assert self.has_begun.wait(DEADLINE_S), "the stream never began"

    def _read(self) -> None:
        while True:
            try:
                piece = self.socket.recv(65536)
            except ConnectionError:
                break
            if not piece:
                break
            self.received += piece
            if b"data: " in self.received:
                self.has_begun.set()
            if b"data: [DONE]" in self.received:
                break
        self.ended_s = time.monotonic()
        self.socket.close()


def test_torch_is_in_the_model_runner_alone(shared_server: Server) -> None:
    def has_torch(part: str) -> bool:
        return "libtorch" in Path(f"/proc/{shared_server.parts[part]}/maps").read_text()

    assert has_torch("model_runner")
    assert not has_torch("scheduler")
    assert not has_torch("runtime")


@pytest.mark.parametrize("victim", ["scheduler", "model_runner"])
def test_when_scheduler_or_runner_is_killed_open_requests_get_an_error_at_once(start: Start, victim: str) -> None:
    server = start(*SMALL).wait_ready()
    stream = OpenStream(server)
    os.kill(server.parts[victim], signal.SIGKILL)
    stream.thread.join(DEADLINE_S)  # its answer would take minutes
    assert stream.ended_s is not None
    assert b'"error"' in stream.received
    assert server.process.wait(DEADLINE_S) != 0
    name = {"scheduler": "scheduler", "model_runner": "model runner"}[victim]
    assert name in server.log
    assert "SIGKILL" in server.log
    server.assert_nothing_left()


def test_when_the_tokenizer_is_killed_the_server_stops_and_says_so(start: Start) -> None:
    server = start(*SMALL).wait_ready()
    stream = OpenStream(server)
    os.kill(server.parts["runtime"], signal.SIGKILL)
    stream.thread.join(DEADLINE_S)
    assert stream.ended_s is not None
    assert server.process.wait(DEADLINE_S) != 0
    assert "tokenizer" in server.log
    server.assert_nothing_left()


def test_when_the_launcher_is_killed_the_others_answer_and_go(start: Start) -> None:
    server = start(*SMALL).wait_ready()
    stream = OpenStream(server)
    server.process.kill()
    server.process.wait()
    stream.thread.join(DEADLINE_S)
    assert stream.ended_s is not None
    assert b'"error"' in stream.received
    server.assert_nothing_left()


def test_sigterm_refuses_new_work_ends_open_requests_and_is_done_soon(start: Start) -> None:
    server = start(*SMALL).wait_ready()
    stream = OpenStream(server)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(DEADLINE_S) == 0
    stream.thread.join(DEADLINE_S)
    assert b"data: [DONE]" in stream.received
    assert b'"length"' not in stream.received, "its answer was waited for"
    server.assert_nothing_left()


def test_sigterm_lets_an_open_stream_finish_within_the_drain_seconds(start: Start) -> None:
    server = start(*SMALL, "--drain-seconds", "250").wait_ready()
    stream = OpenStream(server, num_tokens=200)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.get("/health").status == 503, "/health says that it stops")
    refused = server.post("/generate", {"text": "x"})
    assert refused.status == 503
    assert "Retry-After" in refused.headers
    assert server.get("/live").status == 200
    assert stream.ended_s is None
    assert server.process.wait(timeout=280) == 0
    stream.thread.join(DEADLINE_S)
    assert stream.received.count(b"data: ") > 1
    assert b'"error"' not in stream.received
    assert b'"type":"length"' in stream.received
    assert b"data: [DONE]" in stream.received
    server.assert_nothing_left()


def test_a_second_sigterm_stops_at_once(start: Start) -> None:
    server = start(*SMALL, "--drain-seconds", "100").wait_ready()
    stream = OpenStream(server)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "once more stops at once" in server.log, "the first is heard")
    asked_s = time.monotonic()
    while "stopped at once" not in server.log:
        assert time.monotonic() - asked_s < DEADLINE_S
        server.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(0.2)
    assert server.process.wait(DEADLINE_S) != 0
    stream.thread.join(DEADLINE_S)
    assert stream.ended_s is not None
    server.assert_nothing_left()


def test_ctrl_c_stops_an_idle_server_quietly(start: Start) -> None:
    server = start(*SMALL).wait_ready()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(DEADLINE_S) == 0
    assert "Traceback" not in server.log
    server.assert_nothing_left()


def test_two_servers_do_not_meet_and_a_server_starts_again_after_a_crash(start: Start) -> None:
    first, second = start(*SMALL), start(*SMALL)
    first.wait_ready()
    second.wait_ready()
    text = "The sky is"
    assert first.generate(text, max_new_tokens=6)["text"] == second.generate(text, max_new_tokens=6)["text"]
    first.process.kill()
    first.process.wait()
    wait_until(lambda: not any(map(is_alive, first.parts.values())), "the first is gone")
    assert second.generate(text, max_new_tokens=6)["meta_info"]["cached_tokens"] == 2
    third = start(*SMALL).wait_ready()
    assert third.generate(text, max_new_tokens=6)["meta_info"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("/no/such/model.gguf",), ("/no/such/model.gguf",)),
        (("--max-total-tokens", "1"), ("--max-total-tokens",)),
        (("--max-total-tokens", "100000000000"), ("--max-total-tokens",)),
        (("--host", "203.0.113.1"), ("--host", "203.0.113.1")),
    ],
)
def test_what_cannot_start_says_in_one_error_which_flag_to_change(
    start: Start, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    server = start(*flags)
    assert server.process.wait(DEADLINE_S) != 0
    for word in words:
        assert word in server.log
    assert "Traceback" not in server.log
    server.assert_nothing_left()


def test_a_port_that_is_taken_is_named(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = start(*SMALL, "--port", str(port))
        assert server.process.wait(DEADLINE_S) != 0
    assert str(port) in server.log
    assert "--port" in server.log
    server.assert_nothing_left()
