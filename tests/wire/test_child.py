import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.deadline import DEADLINE_S
from wire.child import LauncherGone, PeerDied, Progress, Shutdown, Started, decode_notice, decode_status, to_line

ROOT = Path(__file__).parent.parent.parent
CODE = """
import threading
from wire.child import LauncherGone, Started, adopt, to_line
config, child = adopt(dict[str, str], is_killed_with_launcher=False)
is_over = threading.Event()
def on_notice(notice):
    print(to_line(notice).decode(), end="", flush=True)
    if isinstance(notice, LauncherGone) and config["name"] == "Quick":
        is_over.set()
child.watch(on_notice, run_dir=config["run_dir"])
child.tell(Started(facts={"name": config["name"]}))
is_over.wait()
"""


@dataclass(slots=True)
class Running:
    process: subprocess.Popen[bytes]
    status: IO[bytes]
    run_dir: Path

    def say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def heard(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.fixture(params=["Ada"])
def child(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    status_read, status_write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", CODE, "--status-fd", str(status_write)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(status_write,),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(status_write)
    with os.fdopen(status_read, "rb") as status, process:
        running = Running(process, status, run_dir)
        running.say(to_line({"name": request.param, "run_dir": str(run_dir)}))
        assert decode_status(status.readline()) == Started(facts={"name": request.param})
        yield running
        process.kill()


def test_notices_arrive_in_order_and_signals_are_left_to_the_launcher(child: Running) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        child.process.send_signal(number)
    notices = [PeerDied(process="runner", exit_status="exit status 1", last_words="a\nb"), Shutdown(grace_s=1.5)]
    for notice in notices:
        child.say(to_line(notice))
    assert [decode_notice(child.heard()) for _ in notices] == notices


def test_when_the_launcher_goes_the_child_hears_it_ends_and_removes_the_run_directory(child: Running) -> None:
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert decode_notice(child.heard()) == LauncherGone()
    assert child.process.wait(DEADLINE_S) == os.EX_UNAVAILABLE
    assert not child.run_dir.exists()


@pytest.mark.parametrize("child", ["Quick"], indirect=True)
def test_a_child_that_ends_as_soon_as_the_launcher_has_gone_removes_the_run_directory_too(child: Running) -> None:
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert child.process.wait(DEADLINE_S) == 0
    assert not child.run_dir.exists()


def test_a_process_that_asks_for_it_is_killed_with_its_launcher(tmp_path: Path) -> None:
    """The launcher is a process between this one and the child, which hangs and never reads its standard input."""
    hanging = (
        "import os, threading\nfrom wire.child import adopt\n"
        "adopt(dict[str, str], is_killed_with_launcher=True)\nos.write(1, b'x')\nthreading.Event().wait()"
    )
    launcher = (
        "import subprocess, sys, threading\n"
        f"child = subprocess.Popen([sys.executable, '-c', {hanging!r}, '--status-fd', '2'], stdin=subprocess.PIPE)\n"
        "child.stdin.write(b'{}\\n')\nchild.stdin.flush()\nthreading.Event().wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", launcher], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        process.kill()
        assert process.stdout.read() == b""  # the child, which held the other end, has gone as well


def test_started_by_hand_a_process_says_how_it_is_meant_to_be_started() -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-c", CODE, "--status-fd", "2"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert b"start axil with `axil serve`" in result.stderr


def test_a_message_is_one_line_whatever_it_holds() -> None:
    message = Progress(what="a\nb", done=1, total=2, unit="ü")
    line = to_line(message)
    assert line.count(b"\n") == 1
    assert decode_status(line) == message
