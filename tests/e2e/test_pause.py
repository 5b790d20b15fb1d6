"""A pause of a real server: who asks meanwhile waits, and gets the answer that it would have got."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.deadline import DEADLINE_S
from tests.e2e.server import Server, wait_until

pytestmark = pytest.mark.e2e

ASKED = {"text": "abc", "sampling_params": {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}}


def _num_waiting(server: Server) -> int:
    (state,) = server.get("/server_info").json["internal_states"]
    assert state["num_running"] == 0
    return int(state["num_waiting"])


def test_requests_wait_for_the_end_of_a_pause(tiny_server: Server) -> None:
    server = tiny_server
    expected = server.post("/generate", ASKED).json["text"]
    assert server.post("/pause_generation", {}).status == 200
    with ThreadPoolExecutor(1) as pool:
        try:
            late = pool.submit(server.post, "/generate", ASKED)
            wait_until(lambda: _num_waiting(server) == 1, "the request waits")
            wait_until(lambda: server.get("/health").json == {"status": "paused"}, "told")
            assert not late.done()
        finally:
            assert server.post("/continue_generation", {}).status == 200
        assert late.result(DEADLINE_S).json["text"] == expected
    wait_until(lambda: server.get("/health").json == {"status": "ok"}, "going on")


def test_a_pause_ends_open_requests_with_a_reason_and_keeps_what_was_computed(tiny_server: Server) -> None:
    server = tiny_server
    long = {**ASKED, "sampling_params": {**ASKED["sampling_params"], "max_new_tokens": 400}}  # type: ignore[dict-item]
    assert server.post("/pause_generation", {"mode": "in_place"}).status == 200
    with ThreadPoolExecutor(1) as pool:
        try:
            open_one = pool.submit(server.post, "/generate", long)
            wait_until(lambda: _num_waiting(server) == 1, "the request waits")
            paused = server.post("/pause_generation", {"mode": "abort"})
            assert paused.json["aborted"] == 1
            assert open_one.result(DEADLINE_S).json["meta_info"]["finish_reason"]["type"] == "abort"
        finally:
            server.post("/continue_generation", {})
    server.assert_idle_and_whole()
