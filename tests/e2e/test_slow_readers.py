"""Clients that take nothing, or wait for long: they cost a bounded amount of memory, and nobody else waits for them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.server import Server, wait_until

NUM_STALLED = 50
NUM_IDLE = 1000
STALLED_S = 2.0
NOT_HELD_UP_S = 20.0
"""Until /health answers, on a machine that other tests keep busy; those who take nothing hold on for ever."""
MEGABYTE = 1 << 20
LARGE_STREAM = {
    "text": "x",
    "stream": True,
    "return_logprob": True,
    "top_logprobs_num": 20,
    "sampling_params": {"max_new_tokens": 480, "ignore_eos": True, "temperature": 0},
}
"""Each frame repeats what came before: about 50 MB in all, far more than the kernel's buffers take."""


def _request(body: object) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def _connected(server: Server, stack: ExitStack, *, buffer_bytes: int | None = None) -> socket.socket:
    connection = stack.enter_context(socket.socket())
    if buffer_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    connection.connect(("127.0.0.1", server.port))
    return connection


def test_readers_that_take_nothing_are_dropped_and_were_never_buffered_for_ever(
    start: Callable[..., Server], tiny_model: Path
) -> None:
    flags = (str(tiny_model), "--dtype", "float32", "--max-total-tokens", "40000")
    server = start(*flags, "--stalled-reader-timeout", str(STALLED_S)).wait_ready()
    server.generate("x", max_new_tokens=4)
    before = server.resident_bytes()["runtime"]
    with ExitStack() as stack:
        readers = [_connected(server, stack, buffer_bytes=4096) for _ in range(NUM_STALLED)]
        for reader in readers:
            reader.sendall(_request(LARGE_STREAM))
        most = before
        num_left, ends_s = NUM_STALLED, time.monotonic() + 180
        while num_left:
            assert time.monotonic() < ends_s, f"{num_left} readers that take nothing are still served"
            began_s = time.monotonic()
            assert server.get("/health").status == 200
            assert time.monotonic() - began_s < NOT_HELD_UP_S
            most = max(most, server.resident_bytes()["runtime"])
            # Those who came first may be gone before the last one is in.
            num_begun = round(server.metric("axil_requests_total")) - 1
            num_left = NUM_STALLED - num_begun + round(server.metric("axil_http_open_requests"))
        # A stream's own answer is kept to the end; what is not kept is a copy of it for each frame.
        assert most - before < NUM_STALLED * 8 * MEGABYTE, f"{(most - before) / MEGABYTE:.0f} MB"
    assert server.generate("x", max_new_tokens=4)["meta_info"]["completion_tokens"] == 4
    server.assert_idle_and_whole()


def test_a_thousand_requests_that_wait_leave_the_server_healthy(start: Callable[..., Server], tiny_model: Path) -> None:
    # Of two rows at a time the thousandth has its turn late: until then its connection is open and silent.
    flags = (str(tiny_model), "--dtype", "float32", "--max-total-tokens", "8000", "--max-running", "2")
    server = start(*flags, "--max-queued-requests", str(2 * NUM_IDLE)).wait_ready()
    server.generate("x", max_new_tokens=4)
    before = server.resident_bytes()["runtime"]
    body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 480, "ignore_eos": True}}
    with ExitStack() as stack:
        for _ in range(NUM_IDLE):
            _connected(server, stack).sendall(_request(body))
        wait_until(lambda: server.metric("axil_http_open_requests") > 0.9 * NUM_IDLE, "the crowd is in", within_s=120)
        began_s = time.monotonic()
        assert server.get("/health").status == 200
        assert time.monotonic() - began_s < NOT_HELD_UP_S
        grown = server.resident_bytes()["runtime"] - before
        assert grown < 100 * MEGABYTE, f"{grown / MEGABYTE:.0f} MB"
    wait_until(lambda: server.metric("axil_http_open_requests") == 0, "those who left are gone", within_s=120)
    server.assert_idle_and_whole()
