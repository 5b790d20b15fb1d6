"""Takes plans and gives results: a step is queued on the device while the one before it still runs there.

The scheduler plans one step ahead. Where the device works by itself, the host's part of step N+1 is done before the
tokens of step N are waited for, so the device goes from one to the next at once. Where the host computes, a step is
done when it has been launched, and its result leaves at once. Knows no model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

import msgspec
import zmq

from wire.messages.encoding import encode
from wire.messages.from_runner import FromRunner, Profiled, StepResult
from wire.messages.to_runner import Profile, StepPlan, Stop, decode_to_runner

from .profiling import Profiling, WrongTime

POLL_MS = 1
"""How often a running step is looked at while no plan comes."""


class Step(Protocol):
    """A launched step."""

    def is_done(self) -> bool:
        """Whether `result` returns at once."""

    def result(self) -> StepResult:
        """Wait for it."""


class Launcher(Protocol):
    """What runs the steps."""

    def launch(self, plan: StepPlan) -> Step:
        """Queue a plan; at most one other one is outstanding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    step: Step
    taken_at: float
    waited_s: float


def serve(
    runner: Launcher,
    plans: zmq.Socket[Any],
    results: zmq.Socket[Any],
    *,
    profiling: Profiling,
    report: Callable[[StepResult], FromRunner] = lambda result: result,
) -> None:
    """Run plans until `Stop`; then all results have been sent, as what `report` makes of each.

    Raises:
        FatalError: as the runner does.
    """
    running: _Running | None = None
    finished_at = 0.0

    def finish(one: _Running) -> None:
        nonlocal finished_at
        result = one.step.result()
        now = time.monotonic()
        # A step begins when it is taken or when the device gets to it, whichever is later.
        elapsed_s, finished_at = now - max(one.taken_at, finished_at), now
        result = msgspec.structs.replace(result, elapsed_s=elapsed_s, waited_s=one.waited_s)
        results.send(encode(report(result)))
        profiling.after_step()

    while True:
        waiting_since = time.monotonic()
        while running is not None and not plans.poll(POLL_MS):
            if running.step.is_done():
                finish(running)
                running = None
        frame = plans.recv()
        taken_at = time.monotonic()
        match decode_to_runner(frame):
            case StepPlan() as plan:
                launched = runner.launch(plan)
            case Profile() as wished:
                if running is not None:
                    finish(running)
                    running = None
                results.send(encode(_profiled(profiling, wished)))
                continue
            case Stop():
                if running is not None:
                    finish(running)
                return
            case other:
                assert_never(other)
        if running is not None:
            finish(running)
        running = _Running(step=launched, taken_at=taken_at, waited_s=taken_at - waiting_since)
        if launched.is_done():
            finish(running)
            running = None


def _profiled(profiling: Profiling, message: Profile) -> Profiled:
    """Begin or end a profile; what goes wrong with it is told to who asked, and harms nobody else."""
    path = refusal = None
    try:
        if message.wish is None:
            path = str(profiling.stop())
        else:
            profiling.start(message.wish)
    except (WrongTime, OSError, RuntimeError) as error:
        refusal = str(error)
    return Profiled(client=message.client, control_id=message.control_id, path=path, refusal=refusal)
