"""What the scheduler sends to ranks that are not there yet, or no more."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from scheduler.loop import Sockets, ToldToStop
from tests.deadline import DEADLINE_S
from wire.messages.encoding import encode
from wire.messages.to_runner import Stop
from wire.sockets import Endpoints, bound, connected


class Ends:
    """A scheduler's sockets, and where it is told to stop."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], run_dir: Path) -> None:
        self.context = context
        self.endpoints = Endpoints(str(run_dir))
        self.stop_fd, self.ask_to_stop = os.pipe()
        self.sockets = Sockets(
            requests=bound(context, zmq.ROUTER, self.endpoints.requests),
            plans=[bound(context, zmq.PUSH, self.endpoints.plans(0))],
            results=bound(context, zmq.PULL, self.endpoints.results),
            stop_fd=self.stop_fd,
        )

    def close(self) -> None:
        os.close(self.stop_fd)
        os.close(self.ask_to_stop)
        self.context.destroy(linger=0)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    ends = Ends(zmq.Context(), tmp_path)
    yield ends
    ends.close()


def in_a_thread(ends: Ends) -> tuple[threading.Thread, list[str]]:
    ended: list[str] = []

    def send() -> None:
        try:
            ends.sockets.send_all(Stop())
            ended.append("sent")
        except ToldToStop:
            ended.append("told to stop")

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread, ended


def test_who_waits_for_a_rank_that_has_gone_hears_the_stop(ends: Ends) -> None:
    thread, ended = in_a_thread(ends)
    os.write(ends.ask_to_stop, b"x")
    thread.join(DEADLINE_S)
    assert ended == ["told to stop"]


def test_a_rank_that_connects_late_gets_what_was_sent_before(ends: Ends) -> None:
    thread, ended = in_a_thread(ends)
    with connected(ends.context, zmq.PULL, ends.endpoints.plans(0)) as rank:
        assert rank.poll(round(1000 * DEADLINE_S))
        assert rank.recv() == encode(Stop())
    thread.join(DEADLINE_S)
    assert ended == ["sent"]


def test_a_rank_that_is_there_is_told_to_stop_too(ends: Ends) -> None:
    with connected(ends.context, zmq.PULL, ends.endpoints.plans(0)) as rank:
        assert ends.sockets.plans[0].poll(round(1000 * DEADLINE_S), zmq.POLLOUT)
        os.write(ends.ask_to_stop, b"x")
        ends.sockets.send_all(Stop())
        assert rank.poll(round(1000 * DEADLINE_S))
