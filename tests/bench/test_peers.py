from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import server
from bench.command import CannotMeasure
from bench.peers import peer, script_of
from bench.server import NotStarted
from tests.processes import is_alive

HERE = Path(__file__).parent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a peer.sh whose peers note their process ids there."""
    (tmp_path / "peer.sh").symlink_to(HERE / "fake_peer.sh")
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("PEERS", str(tmp_path))
    return tmp_path


@contextmanager
def _started(folder: Path, name: str, *, within_s: float = 30.0) -> Iterator[int]:
    with peer(script_of(folder), name, within_s=within_s) as running:
        assert running.url.startswith("http://127.0.0.1:")
        yield int((folder / f"{name}.notes").read_text())


@pytest.mark.parametrize("name", ["good", "forked", "stubborn"])
def test_a_peer_lives_until_the_end_of_the_block_and_leaves_no_process(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "stubborn":
        monkeypatch.setattr(server, "STOPPED_WITHIN_S", 0.2)
    with _started(folder, name) as process_id:
        assert is_alive(process_id)
    assert not is_alive(process_id)


def test_a_peer_is_stopped_when_the_measurement_fails_or_is_ended(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), _started(folder, "forked") as process_id:
        raise ZeroDivisionError
    assert not is_alive(process_id)
    with pytest.raises(SystemExit), _started(folder, "good") as process_id:
        os.kill(os.getpid(), signal.SIGTERM)
    assert not is_alive(process_id)


def test_a_peer_that_never_answers_is_given_up_and_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STOPPED_WITHIN_S", 5.0)
    with pytest.raises(NotStarted, match="deaf was not ready within"), _started(folder, "deaf", within_s=1.0):
        pytest.fail("it does not answer")
    notes = folder / "deaf.notes"
    assert not notes.exists() or not is_alive(int(notes.read_text()))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nobody", "knows no peer nobody"),
        ("absent", "absent is not installed: .*no/such/program"),
        ("broken", "(?s)broken ended with status 1.*no kernel for this CPU"),
    ],
)
def test_why_a_peer_is_not_there_is_said_plainly(folder: Path, name: str, complaint: str) -> None:
    with pytest.raises(NotStarted, match=complaint), _started(folder, name):
        pytest.fail("it is not running")


def test_the_programs_lie_in_the_folder_unless_said_otherwise(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEERS")
    (folder / "peer.sh").unlink()
    (folder / "peer.sh").write_text('#!/bin/sh\necho "$PEERS"; exit 1\n')
    (folder / "peer.sh").chmod(0o755)
    with pytest.raises(NotStarted, match=rf"\n{folder}$"), _started(folder, "good"):
        pytest.fail("it is not running")


def test_a_folder_without_a_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasure, match=r"no executable peer\.sh"):
        script_of(tmp_path)
