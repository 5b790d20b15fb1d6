import contextlib
import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.display import address, curl
from tests.deadline import DEADLINE_S
from tests.processes import is_alive

ROOT = Path(__file__).parent.parent.parent
BUSY = 5
"""So many times longer than a quiet machine may one take that other tests keep busy."""
NAMES = ("tokenizer", "scheduler", "model runner")


class Axil:
    """A running `axil serve` with fake children; `output` is all that it has written so far."""

    def __init__(self, tmp_path: Path, arguments: tuple[str, ...], parts: str, redirections: str, first: str) -> None:
        self.temporary = tmp_path / "tmp"
        model = tmp_path / "model"
        for folder in (self.temporary, model):
            folder.mkdir(exist_ok=True)
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            (model / name).write_text("{}")
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.temporary),
            "FAKE_PARTS": parts,
            "FAKE_RECORD": str(tmp_path / "record"),
        }
        command = [sys.executable, "-m", "tests.runtime.fake_axil", "serve", str(model), *arguments]
        self.process = subprocess.Popen(
            ["sh", "-c", f'{first} exec "$@" {redirections}', "sh", *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
        )
        self.output = ""
        self._has_more = threading.Condition()
        self._is_at_end = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str, *, within_s: float = DEADLINE_S) -> re.Match[str]:
        with self._has_more:
            self._has_more.wait_for(lambda: re.search(pattern, self.output) or self._is_at_end, within_s)
        match = re.search(pattern, self.output)
        assert match is not None, self.output
        return match

    def wait_ready(self) -> dict[str, int]:
        """Wait for the address; returns the process ids of the parts."""
        self.wait_for(r"\ncurl .*\n")
        return {name: int(self.wait_for(rf"{name} is ready pid=(\d+)")[1]) for name in NAMES}

    def end(self) -> int:
        """Wait for the end of the launcher and of its output; returns the exit status."""
        status = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._has_more:
                    self.output += line
                    self._has_more.notify_all()
        with self._has_more:
            self._is_at_end = True
            self._has_more.notify_all()


Start = Callable[..., Axil]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Axil] = []

    def begin(*arguments: str, parts: str = "", redirections: str = "", first: str = "") -> Axil:
        started.append(Axil(tmp_path, arguments, parts, redirections, first))
        return started[-1]

    yield begin
    for axil in started:
        axil.process.kill()
        axil.end()


def test_a_start_shows_the_address_and_one_command_to_paste_and_sigterm_leaves_nothing(start: Start) -> None:
    axil = start("--port", "0", "--served-model-name", "it's")
    pids = axil.wait_ready()
    assert len(re.findall(r"http://127\.0\.0\.1:31000 ", axil.output)) == 1
    assert "a live view: http://127.0.0.1:31000/ui\n" in axil.output
    words = shlex.split(axil.wait_for(r"\n(curl .*)\n")[1])
    assert words[:2] == ["curl", "http://127.0.0.1:31000/v1/completions"]
    assert '"model": "it\'s"' in words[-1]
    assert "WITHOUT" not in axil.output
    before = time.monotonic()
    axil.process.send_signal(signal.SIGTERM)
    assert axil.end() == 0
    assert time.monotonic() - before < BUSY * 5
    assert_nothing_left(axil, pids)


def test_ctrl_c_stops_quietly(start: Start) -> None:
    axil = start()
    pids = axil.wait_ready()
    axil.process.send_signal(signal.SIGINT)
    assert axil.end() == 0
    assert "Traceback" not in axil.output
    assert_nothing_left(axil, pids)


@pytest.mark.parametrize("redirections", ["0>&-", "0>&- 1>&-", "0>&- 2>&-"])
def test_it_serves_with_standard_streams_closed(start: Start, redirections: str) -> None:
    axil = start(redirections=redirections)
    axil.wait_for("\ncurl |tokenizer is ready")
    axil.process.send_signal(signal.SIGTERM)
    assert axil.end() == 0
    assert "Traceback" not in axil.output


def test_a_second_ctrl_c_stops_at_once(start: Start, tmp_path: Path) -> None:
    axil = start(parts="tokenizer=deaf")
    pids = axil.wait_ready()
    axil.process.send_signal(signal.SIGINT)
    axil.wait_for("SIGINT: finishing")
    ask_again(axil, signal.SIGINT)
    assert axil.end() == 130
    assert_nothing_left(axil, pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_that_come_to_the_very_end_change_no_more(start: Start, number: signal.Signals) -> None:
    axil = start(parts="tokenizer=deaf")
    pids = axil.wait_ready()
    while axil.process.poll() is None:
        axil.process.send_signal(number)
        time.sleep(0.0005)
    assert axil.end() == 130
    assert "Traceback" not in axil.output
    assert_nothing_left(axil, pids)


def test_a_server_that_nohup_starts_outlives_its_terminal(start: Start) -> None:
    axil = start(first="trap '' HUP;")
    axil.wait_ready()
    axil.process.send_signal(signal.SIGHUP)
    axil.process.send_signal(signal.SIGTERM)
    assert axil.end() == 0
    assert "SIGTERM: finishing" in axil.output
    assert "SIGHUP" not in axil.output


def test_a_signal_that_a_supervisor_sends_twice_at_once_is_one_wish(start: Start) -> None:
    axil = start("--drain-seconds", "60", parts="tokenizer=busy")
    pids = axil.wait_ready()
    axil.process.send_signal(signal.SIGTERM)
    axil.process.send_signal(signal.SIGTERM)
    axil.wait_for("SIGTERM: finishing")
    os.kill(pids["scheduler"], signal.SIGKILL)
    assert axil.end() == 1
    assert "stopped at once" not in axil.output


def ask_again(axil: Axil, number: signal.Signals) -> None:
    """Send a signal until it is heard as another one than the first, for a time."""
    deadline = time.monotonic() + DEADLINE_S
    while "stopped at once" not in axil.output:
        assert time.monotonic() < deadline
        axil.process.send_signal(number)
        with contextlib.suppress(AssertionError):
            axil.wait_for("stopped at once", within_s=0.2)


@pytest.mark.parametrize(
    ("parts", "status", "said"),
    [
        ("scheduler=deaf model_runner=deaf", 0, "WARNING stopped; the scheduler and the model runner did not end"),
        ("tokenizer=deaf", 1, "ERROR   stopped; the tokenizer did not end in time and had to be killed: answers still"),
    ],
)
def test_parts_that_ignore_the_stop_are_gone_a_moment_after_the_time_of_grace(
    start: Start, parts: str, status: int, said: str
) -> None:
    axil = start(parts=parts)
    pids = axil.wait_ready()
    before = time.monotonic()
    axil.process.send_signal(signal.SIGTERM)
    assert axil.end() == status
    assert time.monotonic() - before < BUSY * 5
    assert said in axil.output
    assert_nothing_left(axil, pids)


@pytest.mark.parametrize("victim", NAMES)
def test_open_requests_may_take_the_drain_seconds_and_a_death_meanwhile_gives_status_one(
    start: Start, victim: str
) -> None:
    axil = start("--drain-seconds", "60", parts="tokenizer=busy")
    pids = axil.wait_ready()
    axil.process.send_signal(signal.SIGTERM)
    axil.wait_for("SIGTERM: finishing open requests for up to 60 s")
    os.kill(pids[victim], signal.SIGKILL)
    before = time.monotonic()
    assert axil.end() == 1
    assert time.monotonic() - before < 50  # of the 60 that it may take
    assert f"the {victim} died (killed by SIGKILL)" in axil.output
    assert_nothing_left(axil, pids)


def test_a_stop_while_starting_ends_the_start(start: Start) -> None:
    axil = start(parts="model_runner=hang")
    axil.wait_for("tokenizer is ready")
    axil.process.send_signal(signal.SIGTERM)
    assert axil.end() == 0
    assert "Traceback" not in axil.output
    assert_nothing_left(axil, {})


def test_a_part_that_cannot_start_gives_one_error_and_status_one(start: Start) -> None:
    axil = start(parts="tokenizer=fail model_runner=hang")
    assert axil.end() == 1
    errors = [line for line in axil.output.splitlines() if "error" in line]
    assert errors == [
        "axil: error: the tokenizer could not start: port 30000 is taken; choose another with --port",
    ]
    assert_nothing_left(axil, {})


def test_a_start_that_takes_too_long_names_the_part_and_the_flag(start: Start) -> None:
    axil = start("--start-timeout", "1", parts="model_runner=hang")
    assert axil.end() == 1
    assert re.search(r"axil: error: not ready after 1 s: .*the model runner .*--start-timeout", axil.output)


@pytest.mark.parametrize("victim", NAMES)
def test_when_a_part_is_killed_the_server_says_who_died_and_ends_with_status_one(start: Start, victim: str) -> None:
    axil = start()
    pids = axil.wait_ready()
    os.kill(pids[victim], signal.SIGKILL)
    assert axil.end() == 1
    assert f"the {victim} died (killed by SIGKILL)" in axil.output
    assert f"| {victim.replace(' ', '_')} says hello" in axil.output
    assert_nothing_left(axil, pids)


def test_when_the_launcher_is_killed_the_parts_go_and_so_does_the_run_directory(start: Start, tmp_path: Path) -> None:
    axil = start()
    pids = axil.wait_ready()
    axil.process.kill()
    axil.end()  # the children hold no pipe of ours, so wait for each of them by its process id
    deadline = time.monotonic() + DEADLINE_S
    for pid in pids.values():
        wait_gone(pid, deadline)
    assert_nothing_left(axil, pids)
    assert set((tmp_path / "record").read_text().splitlines()) == {
        f"{name.replace(' ', '_')} LauncherGone" for name in NAMES
    }


def test_directories_of_dead_launches_are_removed_and_those_of_living_ones_are_not(
    start: Start, tmp_path: Path
) -> None:
    dead, living, foreign = (tmp_path / "tmp" / name for name in ("axil-dead", "axil-living", "axil-foreign"))
    for folder in (dead, living, foreign):
        folder.mkdir(parents=True)
    (dead / "launcher.lock").touch()
    with (living / "launcher.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        start().wait_ready()
        assert not dead.exists()
        assert living.exists()
        assert foreign.exists()


def test_listening_beyond_this_machine_without_a_key_is_warned_about(start: Start) -> None:
    axil = start("--host", "0.0.0.0")
    axil.wait_ready()
    assert re.search(r"WARNING .*0\.0\.0\.0 WITHOUT --api-key", axil.output)
    assert "http://127.0.0.1:31000 " in axil.output


def test_with_a_key_nothing_is_warned_about_and_the_key_is_not_shown(start: Start) -> None:
    axil = start("--host", "0.0.0.0", "--api-key", "sesame")
    axil.wait_ready()
    assert "WITHOUT" not in axil.output
    assert "sesame" not in axil.output
    assert "Authorization: Bearer $API_KEY" in axil.output


def test_an_ipv6_address_is_put_into_brackets() -> None:
    assert address("::1", 80) == "http://[::1]:80"
    assert address("::", 80) == "http://[::1]:80"


def test_a_model_with_a_chat_template_is_asked_by_chat() -> None:
    assert "/v1/chat/completions" in curl("http://x", model="m", is_chat=True, has_key=False)


def assert_nothing_left(axil: Axil, pids: dict[str, int]) -> None:
    assert list(axil.temporary.iterdir()) == []
    assert not any(map(is_alive, pids.values()))


def wait_gone(pid: int, deadline: float) -> None:
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
