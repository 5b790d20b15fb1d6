"""The loop between the sockets, with a device whose steps end when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from model_runner.profiling import Profiling
from model_runner.serve import serve
from wire.messages.encoding import encode, ids_to_bytes
from wire.messages.from_runner import StepResult, decode_from_runner
from wire.messages.to_runner import StepPlan, Stop

DEADLINE_MS = 60_000


class Step:
    def __init__(self, step: int, *, is_done: bool) -> None:
        self.step = step
        self.done = threading.Event()
        if is_done:
            self.done.set()

    def is_done(self) -> bool:
        return self.done.is_set()

    def result(self) -> StepResult:
        assert self.done.wait(DEADLINE_MS / 1000)
        return StepResult(step=self.step, token_ids=ids_to_bytes([self.step]))


class Device:
    """Launches at once; `launched` is told of it."""

    def __init__(self, *, is_host: bool) -> None:
        self.is_host = is_host
        self.steps: list[Step] = []
        self.launched = threading.Semaphore(0)

    def launch(self, plan: StepPlan) -> Step:
        self.steps.append(Step(plan.step, is_done=self.is_host))
        self.launched.release()
        return self.steps[-1]


class Scheduler:
    def __init__(self, device: Device) -> None:
        context = zmq.Context.instance()
        self.plans, theirs = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        self.results, their_results = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        for bound, connected, name in ((self.plans, theirs, "plans"), (self.results, their_results, "results")):
            bound.bind(f"inproc://{id(self)}-{name}")
            connected.connect(f"inproc://{id(self)}-{name}")
        self.sockets = [self.plans, theirs, self.results, their_results]
        self.thread = threading.Thread(
            target=serve,
            args=(device, theirs, their_results),
            kwargs={"profiling": Profiling(Path("never-written"))},
        )
        self.thread.start()

    def send(self, *steps: int) -> None:
        for step in steps:
            self.plans.send(encode(StepPlan(step=step)))

    def receive(self) -> StepResult:
        assert self.results.poll(DEADLINE_MS)
        message = decode_from_runner(self.results.recv())
        assert isinstance(message, StepResult)
        return message

    def stop(self) -> None:
        self.plans.send(encode(Stop()))
        self.thread.join(DEADLINE_MS / 1000)
        assert not self.thread.is_alive()
        for one in self.sockets:
            one.close(linger=0)


@pytest.fixture
def made() -> Iterator[Any]:
    schedulers: list[Scheduler] = []

    def make(*, is_host: bool) -> tuple[Scheduler, Device]:
        device = Device(is_host=is_host)
        schedulers.append(Scheduler(device))
        return schedulers[-1], device

    yield make
    for scheduler in schedulers:
        scheduler.stop()


def _wait_launched(device: Device, count: int) -> None:
    for _ in range(count):
        assert device.launched.acquire(timeout=DEADLINE_MS / 1000)


def test_the_next_step_is_launched_while_one_runs_and_results_come_in_order(made: Any) -> None:  # noqa: ANN401
    scheduler, device = made(is_host=False)
    scheduler.send(0, 1, 2)
    _wait_launched(device, 2)
    assert not scheduler.results.poll(0)
    device.steps[1].done.set()
    assert not scheduler.results.poll(50), "step 1 may not overtake step 0"
    device.steps[0].done.set()
    assert scheduler.receive().step == 0
    assert scheduler.receive().step == 1
    _wait_launched(device, 1)
    device.steps[2].done.set()
    assert scheduler.receive().step == 2


def test_a_result_does_not_wait_for_the_next_plan(made: Any) -> None:  # noqa: ANN401
    scheduler, device = made(is_host=False)
    scheduler.send(0)
    _wait_launched(device, 1)
    device.steps[0].done.set()
    assert scheduler.receive().step == 0


def test_where_the_host_computes_each_result_leaves_before_the_next_step_begins(made: Any) -> None:  # noqa: ANN401
    scheduler, _ = made(is_host=True)
    scheduler.send(*range(5))
    results = [scheduler.receive() for _ in range(5)]
    assert [result.step for result in results] == list(range(5))
    assert all(result.elapsed_s >= 0 for result in results)


def test_the_time_of_overlapping_steps_is_counted_once(made: Any) -> None:  # noqa: ANN401
    scheduler, device = made(is_host=False)
    scheduler.send(0, 1)
    _wait_launched(device, 2)
    assert not scheduler.results.poll(100)
    for step in device.steps:
        step.done.set()
    first, second = scheduler.receive(), scheduler.receive()
    assert first.elapsed_s >= 0.1
    assert second.elapsed_s < first.elapsed_s


def test_a_stop_comes_after_the_result_that_is_outstanding(made: Any) -> None:  # noqa: ANN401
    scheduler, device = made(is_host=False)
    scheduler.send(0)
    _wait_launched(device, 1)
    scheduler.plans.send(encode(Stop()))
    device.steps[0].done.set()
    assert scheduler.receive().step == 0
