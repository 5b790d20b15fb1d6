"""The steps that have been planned and not retired: the first is being executed, the others wait for it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from bench.simulation.runner import FakeRunner, Work


@dataclass(slots=True)
class Pipeline:
    """Works in order; `ends_s` is when the first retires, infinite while there is none."""

    works: deque[Work] = field(default_factory=deque)
    elapsed_s: float = 0.0
    ends_s: float = math.inf

    def push(self, work: Work, runner: FakeRunner, *, now_s: float) -> None:
        """Queue a work; it starts at once when nothing else does."""
        self.works.append(work)
        if len(self.works) == 1:
            self.start(runner, now_s=now_s)

    def pop(self) -> tuple[Work, float]:
        """The first work and what it took; the next is not started yet, because the rows have to grow first."""
        work, elapsed_s = self.works.popleft(), self.elapsed_s
        self.ends_s = math.inf
        return work, elapsed_s

    def start(self, runner: FakeRunner, *, now_s: float) -> None:
        """Begin the first work, if there is one."""
        if self.works:
            self.elapsed_s = runner.seconds(self.works[0])
            self.ends_s = now_s + self.elapsed_s
