from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from model_runner.config import RunnerLaunch
from wire.child import Failed, PeerDied, Progress, Started, Status, decode_status, to_line
from wire.messages.encoding import encode, ids_to_bytes
from wire.messages.from_runner import Fatal, FromRunner, Heartbeat, Ready, StepResult, decode_from_runner
from wire.messages.to_runner import Admission, Chunk, StepPlan, Stop
from wire.sampling import SamplingParams
from wire.sockets import Endpoints, bound, make_run_dir

ROOT = Path(__file__).parents[2]
DEADLINE_MS = 60_000


class Scheduler:
    """The other end of the runner process: its sockets and its launcher's pipes."""

    def __init__(self, launch: RunnerLaunch) -> None:
        self.context = zmq.Context[Any]()
        endpoints = Endpoints(launch.run_dir)
        self.plans = bound(self.context, zmq.PUSH, endpoints.plans(0))
        self.results = bound(self.context, zmq.PULL, endpoints.results)
        read_fd, write_fd = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "model_runner.process", "--status-fd", str(write_fd)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(write_fd,),
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        os.close(write_fd)
        self.status_pipe = os.fdopen(read_fd, "rb")
        self.tell(launch)

    def tell(self, message: object) -> None:
        """Write a line to the runner's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(to_line(message))
        self.process.stdin.flush()

    def started(self) -> list[Status]:
        """All status lines up to `Started` or `Failed`."""
        lines: list[Status] = []
        for line in self.status_pipe:
            lines.append(decode_status(line))
            if isinstance(lines[-1], Started | Failed):
                break
        return lines

    def receive(self, kind: type[FromRunner]) -> Any:  # noqa: ANN401  # of that kind
        """The next message of a kind; others are passed over."""
        while self.results.poll(DEADLINE_MS):
            message = decode_from_runner(self.results.recv())
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind} came")

    def exit_status(self) -> int:
        """Wait for the process to end."""
        return self.process.wait(timeout=DEADLINE_MS / 1000)

    def close(self) -> None:
        """Leave nothing behind."""
        self.process.kill()
        self.process.communicate()
        self.status_pipe.close()
        self.context.destroy(linger=0)


@pytest.fixture
def launched(launch: RunnerLaunch) -> Iterator[Any]:
    opened: list[Scheduler] = []
    run_dirs: list[Path] = []

    def start(launch: RunnerLaunch = launch) -> Scheduler:
        run_dirs.append(make_run_dir())
        opened.append(Scheduler(replace(launch, run_dir=str(run_dirs[-1]))))
        return opened[-1]

    yield start
    for scheduler in opened:
        scheduler.close()
    for run_dir in run_dirs:
        shutil.rmtree(run_dir, ignore_errors=True)


def _plan(step: int) -> StepPlan:
    admission = Admission(
        row=0,
        request_id="request",
        sampling=SamplingParams(seed=0),
        num_cached_tokens=0,
        page_ids=ids_to_bytes([0]),
    )
    chunk = Chunk(row=0, token_ids=ids_to_bytes([1, 2, 3]), is_sampled=True)
    return StepPlan(step=step, admissions=(admission,), chunks=(chunk,))


def test_it_announces_itself_executes_plans_beats_and_stops(launched: Any) -> None:  # noqa: ANN401
    scheduler = launched()
    *progress, started = scheduler.started()
    assert isinstance(started, Started)
    assert started.facts["kv_pool_tokens"] == 640
    held = int(started.facts["resident_mib"]) - int(started.facts["weights_mib"]) - 1024 * started.facts["kv_pool_gib"]
    assert held < 450, "more than Python and torch need"
    assert isinstance(progress[-1], Progress)
    assert progress[-1].done == progress[-1].total > 0
    ready = scheduler.receive(Ready)
    assert (ready.num_pages, ready.page_tokens, ready.vocabulary, ready.context_tokens) == (40, 16, 199, 2048)
    scheduler.plans.send(encode(_plan(0)))
    result = scheduler.receive(StepResult)
    assert len(result.token_ids) == 4
    assert result.elapsed_s > 0
    # One beat may have looked at the step before it ended.
    assert 1 in (scheduler.receive(Heartbeat).step for _ in range(2))
    scheduler.plans.send(encode(Stop()))
    assert scheduler.exit_status() == 0


def test_a_plan_out_of_order_is_fatal_and_says_so(launched: Any) -> None:  # noqa: ANN401
    scheduler = launched()
    scheduler.receive(Ready)
    scheduler.plans.send(encode(_plan(4)))
    assert "step 4 came where step 0 was due" in scheduler.receive(Fatal).message
    assert scheduler.exit_status() == 1


def test_a_start_that_fails_says_why_and_shows_no_traceback(
    launch: RunnerLaunch,
    launched: Any,  # noqa: ANN401
) -> None:
    scheduler = launched(replace(launch, weights="/nowhere/model.gguf"))
    failed = scheduler.started()[-1]
    assert isinstance(failed, Failed)
    assert "/nowhere/model.gguf" in failed.message
    assert scheduler.exit_status() == 1
    assert b"Traceback" not in scheduler.process.stderr.read()


def test_it_ends_at_once_when_told_so(launched: Any) -> None:  # noqa: ANN401
    scheduler = launched()
    scheduler.receive(Ready)
    scheduler.tell(PeerDied(process="scheduler", exit_status="9", last_words=""))
    assert scheduler.exit_status() == os.EX_UNAVAILABLE


def test_it_ends_when_its_launcher_goes(launched: Any) -> None:  # noqa: ANN401
    scheduler = launched()
    scheduler.receive(Ready)
    scheduler.process.stdin.close()
    assert scheduler.exit_status() == os.EX_UNAVAILABLE
    scheduler.process.stdin = None
