"""Virtual time around the scheduler's own functions: arrivals, steps and answers, as its loop takes them.

The same `submit`, `plan` and `settle` that serve; only the runner and the clock are not real. Knows no policy.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from bench.command import CannotMeasure
from bench.simulation.account import Account, Outcome
from bench.simulation.fast_forward import fast_forward
from bench.simulation.pipeline import Pipeline
from bench.simulation.price import Price
from bench.simulation.runner import FakeRunner
from bench.simulation.workload import LARGEST_ID, Session, Turn, Workload
from scheduler import intake
from scheduler.config import SchedulerConfig
from scheduler.leave import fail_stalled
from scheduler.plan import plan
from scheduler.request import ClientId
from scheduler.settle import settle
from scheduler.state import Limits, Reply, State, make_state
from wire.messages.to_runner import StepPlan
from wire.messages.to_scheduler import Submit
from wire.messages.to_tokenizer import Done, Refused, Tokens
from wire.sampling import SamplingParams

CLIENT = ClientId(b"simulation")


@dataclass(slots=True)
class Cpu:
    """Processor seconds in the scheduler: `step_s` in plan and settle, for the steps that were planned."""

    step_s: float = 0.0
    submit_s: float = 0.0
    planned_steps: int = 0
    skipped_steps: int = 0


@dataclass(slots=True, eq=False)
class _OpenSession:
    """A session under way: how many of its turns are not answered, and the first tokens of its prompts."""

    is_private: bool
    open_turns: int = 0
    heads: set[bytes] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Open:
    """A request under way, and the session that it belongs to."""

    session: _OpenSession
    turn: Turn
    outcome: Outcome


@dataclass(slots=True)
class World:
    """One run: made by `make_world`, run once."""

    workload: Workload
    state: State
    runner: FakeRunner
    account: Account
    is_fast: bool
    turns: dict[str, Turn]
    sessions: Iterator[Session]
    cpu: Cpu = field(default_factory=Cpu)
    now_s: float = 0.0
    pipeline: Pipeline = field(default_factory=Pipeline)
    open: dict[str, _Open] = field(default_factory=dict)
    due: list[tuple[float, int, _OpenSession, Turn]] = field(default_factory=list)
    serial: int = 0
    next_session: Session | None = None

    def run(self) -> None:
        """Until every session has had its last answer; without garbage collection, as in the scheduler's process."""
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            self._run()
        finally:
            if was_collecting:
                gc.enable()

    def _run(self) -> None:
        self.next_session = next(self.sessions, None)
        for _ in range(self.workload.concurrency or 0):
            self._begin_next()
        while True:
            self._fill()
            self.state.cache.evict_ahead()
            if self.is_fast:
                until_s = self._arrival_s()
                self.cpu.skipped_steps += fast_forward(self.state, self.runner, self.pipeline, until_s=until_s)
            next_s = min(self._arrival_s(), self.pipeline.ends_s)
            if next_s == math.inf:
                if not self._take(fail_stalled(self.state)):
                    return
                continue
            self.now_s = next_s
            if self.pipeline.ends_s <= next_s:
                self._retire()
            self._arrive()

    def _arrival_s(self) -> float:
        """When the next turn comes."""
        turn_s = self.due[0][0] if self.due else math.inf
        if self.workload.concurrency is None and self.next_session is not None:
            return min(turn_s, self.next_session.start_s)
        return turn_s

    def _begin_next(self) -> None:
        """Let the next session's first turns come now."""
        begun, self.next_session = self.next_session, next(self.sessions, None)
        if begun is not None:
            self._follow(_OpenSession(begun.is_private), begun.turns)

    def _follow(self, session: _OpenSession, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self.serial += 1
            session.open_turns += 1
            session.heads.add(turn.head)
            heappush(self.due, (self.now_s + turn.think_s, self.serial, session, turn))

    def _arrive(self) -> None:
        """Submit every turn that has come by now."""
        if self.workload.concurrency is None:
            while self.next_session is not None and self.next_session.start_s <= self.now_s:
                self._begin_next()
        while self.due and self.due[0][0] <= self.now_s:
            _, serial, session, turn = heappop(self.due)
            self._submit(str(serial), session, turn)

    def _submit(self, request_id: str, session: _OpenSession, turn: Turn) -> None:
        self.open[request_id] = _Open(session, turn, self.account.arrive(turn, now_s=self.now_s))
        self.turns[request_id] = turn
        sampling = SamplingParams(max_new_tokens=len(turn.output), temperature=0.0, seed=0)
        message = Submit(request_id=request_id, token_ids=turn.prompt, sampling=sampling, salt=turn.salt)
        began_s = time.thread_time()
        replies = intake.submit(self.state, CLIENT, message, now_s=self.now_s)
        self.cpu.submit_s += time.thread_time() - began_s
        self._take(replies)

    def _fill(self) -> None:
        depth = 2 if self.state.config.overlap else 1
        while len(self.state.in_flight) < depth:
            began_s = time.thread_time()
            step = plan(self.state, now_s=self.now_s)
            self.cpu.step_s += time.thread_time() - began_s
            if step is None:
                return
            self.cpu.planned_steps += 1
            self._send(step)

    def _send(self, step: StepPlan) -> None:
        rows = self.runner.rows
        for row in step.released:
            self.account.compute(rows[row])
        work = self.runner.take(step)
        for admission in step.admissions:
            opened = self.open[admission.request_id]
            if opened.outcome.queue_s is None:
                opened.outcome.queue_s = self.now_s - opened.outcome.arrived_s
                self.account.schedule(
                    opened.outcome, opened.turn, cached_tokens=admission.num_cached_tokens, running=rows.values()
                )
        self.pipeline.push(work, self.runner, now_s=self.now_s)

    def _retire(self) -> None:
        work, elapsed_s = self.pipeline.pop()
        result = self.runner.retire(work, elapsed_s)
        self.pipeline.start(self.runner, now_s=self.now_s)
        began_s = time.thread_time()
        replies = settle(self.state, result)
        self.cpu.step_s += time.thread_time() - began_s
        self._take(replies)

    def _take(self, replies: Sequence[Reply]) -> int:
        for reply in replies:
            match reply.message:
                case Tokens(request_id=request_id, reuse=reuse):
                    if reuse is not None:
                        self.open[request_id].outcome.first_token_s = self.now_s
                case Done() as done:
                    self._end(done)
                case Refused() as refused:
                    raise CannotMeasure(f"the scheduler refused a request: {refused.message}")
        return len(replies)

    def _end(self, done: Done) -> None:
        ended = self.open.pop(done.request_id)
        del self.turns[done.request_id]
        if done.reason != "length":
            raise CannotMeasure(f"a request ended with {done.reason}: {done.message}")
        ended.outcome.ended_s = self.now_s
        ended.outcome.num_retractions = done.num_retractions
        self.account.end(ended.turn)
        session = ended.session
        self._follow(session, ended.turn.follow())
        session.open_turns -= 1
        if session.open_turns:
            return
        if session.is_private:
            self.account.forget(ended.turn.salt, session.heads)
        if self.workload.concurrency is not None:
            self._begin_next()


def make_world(
    workload: Workload,
    config: SchedulerConfig,
    price: Price,
    *,
    pool_tokens: int,
    page_tokens: int = 16,
    is_fast: bool = True,
) -> World:
    """A scheduler with an empty pool, and everything that will be asked of it.

    Without `is_fast`, runs of equal decode steps are planned and settled one by one.
    """
    limits = Limits(
        model_fingerprint="simulated",
        context_tokens=LARGEST_ID,
        vocabulary=LARGEST_ID,
        pool_tokens=pool_tokens // page_tokens * page_tokens,
    )
    turns: dict[str, Turn] = {}
    return World(
        workload=workload,
        state=make_state(config, limits, page_tokens=page_tokens),
        runner=FakeRunner(price, turns),
        account=Account(page_tokens),
        is_fast=is_fast,
        turns=turns,
        sessions=iter(workload.sessions),
    )
