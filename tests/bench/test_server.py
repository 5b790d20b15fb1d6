from __future__ import annotations

import http.client
import os
import signal
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bench import server, startup
from bench.client import require_loopback
from bench.command import CannotMeasure
from tests.deadline import DEADLINE_S

FAKE_AXIL = [sys.executable, str(Path(__file__).with_name("fake_axil.py"))]


def _answers(url: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(url).port, timeout=DEADLINE_S)
    try:
        return server.health(connection) == 200
    finally:
        connection.close()


def test_a_launched_server_answers_until_the_end_of_the_block_and_no_longer() -> None:
    with server.launched([], command=FAKE_AXIL) as running:
        assert _answers(running.url)
        assert running.ready_s > 0
    assert not _answers(running.url)


def test_a_server_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STOPPED_WITHIN_S", 0.1)
    with server.launched(["--stubborn"], command=FAKE_AXIL) as running:
        assert _answers(running.url)
    assert not _answers(running.url)


def test_sigterm_stops_the_measurement_and_its_server() -> None:
    with pytest.raises(SystemExit) as ended, server.launched([], command=FAKE_AXIL) as running:
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert not _answers(running.url)


def test_a_server_that_ends_at_once_is_reported_with_its_last_words() -> None:
    with (
        pytest.raises(CannotMeasure, match=r"(?s)status 1.*no such model"),
        server.launched(["--fail", "no such model"], command=FAKE_AXIL),
    ):
        pytest.fail("it is not running")


def test_a_server_that_is_never_healthy_is_given_up_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READY_WITHIN_S", 0.1)
    sleeper = [sys.executable, "-c", "import signal; signal.pause()"]
    with pytest.raises(CannotMeasure, match="not ready within"), server.launched([], command=sleeper):
        pytest.fail("it is not running")


def test_a_free_port_is_not_given_to_somebody_else_meanwhile() -> None:
    given_away = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", port := server.free_port()))
        assert port < int(given_away[0])


def test_the_first_start_finds_an_empty_cache_and_the_later_one_what_the_first_left(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    for _ in range(2):
        first_s, later_s = startup.starts(["--notes", str(notes)], command=FAKE_AXIL)
        assert min(first_s, later_s) > 0
    assert notes.read_text().split() == ["first", "later", "first", "later"]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:30000", "http://localhost:8000", "http://[::1]:1", "http://127.9.9.9"]
)
def test_this_machine_may_be_loaded(url: str) -> None:
    require_loopback(url, is_remote_allowed=False)


@pytest.mark.parametrize("url", ["http://10.0.0.1:80", "https://example.org", "http://127.0.0.1.example.org"])
def test_another_machine_may_be_loaded_only_when_asked_for(url: str) -> None:
    require_loopback(url, is_remote_allowed=True)
    with pytest.raises(CannotMeasure, match="--allow-remote"):
        require_loopback(url, is_remote_allowed=False)


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://127.0.0.1", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(CannotMeasure, match="must look like"):
        require_loopback(url, is_remote_allowed=True)
