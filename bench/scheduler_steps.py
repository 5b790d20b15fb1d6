"""CPU time of the scheduler's plan and settle, against a runner that answers at once. Knows no sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.config import SchedulerConfig
from scheduler.intake import submit
from scheduler.plan import plan
from scheduler.request import ClientId
from scheduler.settle import settle
from scheduler.state import Limits, State, make_state
from wire.messages.encoding import TOKEN_BYTES, encode, ids_to_bytes
from wire.messages.from_runner import StepResult, decode_from_runner
from wire.messages.to_runner import StepPlan
from wire.messages.to_scheduler import Submit
from wire.sampling import SamplingParams

PAGE_TOKENS = 16
VOCABULARY = 1 << 17
STEP_S = 0.01

Ids = npt.NDArray[np.int32]


@dataclass(slots=True)
class Bench:
    """A scheduler, its clock, and how many requests it was sent."""

    state: State
    now_s: float = 0.0
    num_submitted: int = 0

    def submit(self, prompt: Ids, *, max_new_tokens: int) -> None:
        """Queue a request."""
        self.num_submitted += 1
        request = Submit(
            request_id=str(self.num_submitted),
            token_ids=prompt.tobytes(),
            sampling=SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0, seed=1),
        )
        replies = submit(self.state, ClientId(b"c"), request, now_s=self.now_s)
        assert not replies, replies

    def plan(self) -> tuple[StepPlan | None, float]:
        """Plan a step; returns it and the CPU milliseconds that it took."""
        self.now_s += STEP_S
        started = time.thread_time()
        step = plan(self.state, now_s=self.now_s)
        return step, (time.thread_time() - started) * 1e3

    def step(self) -> StepPlan:
        """Plan and settle."""
        step, _ = self.plan()
        assert step is not None
        settle(self.state, result_of(step))
        return step


def result_of(step: StepPlan) -> StepResult:
    """What a runner would send: one token for each row that samples."""
    num_sampled = len(step.decodes) // TOKEN_BYTES + sum(chunk.is_sampled for chunk in step.chunks)
    return StepResult(step=step.step, token_ids=ids_to_bytes([1] * num_sampled), elapsed_s=STEP_S)


def make_bench(*, pool_tokens: int, max_running: int, prefill_tokens: int = 1 << 20) -> Bench:
    """A scheduler whose steps may be as long as they like."""
    config = SchedulerConfig(
        max_running=max_running,
        max_queued_requests=1 << 20,
        max_queued_tokens=1 << 40,
        prefill_tokens=prefill_tokens,
        decode_step_ms=1 << 30,
        prefill_step_ms=1 << 30,
        overtake_seconds=1e9,
    )
    limits = Limits(model_fingerprint="m", context_tokens=1 << 22, vocabulary=VOCABULARY, pool_tokens=pool_tokens)
    return Bench(make_state(config, limits, page_tokens=PAGE_TOKENS))


def crowded(*, num_waiting: int, prompt_tokens: int, cached_tokens: int) -> Bench:
    """Requests that share a cached start and wait because one that runs holds the pages; a row is free."""
    random = np.random.default_rng(5)
    shared = _ids(random, cached_tokens)
    long = _ids(random, 262144)
    own_tokens = prompt_tokens - cached_tokens
    left_tokens = own_tokens // 2
    bench = make_bench(pool_tokens=len(long) + cached_tokens + left_tokens, max_running=4, prefill_tokens=2048)
    bench.submit(shared, max_new_tokens=1)
    while bench.state.running or bench.state.in_flight or not bench.state.next_step:
        bench.step()
    bench.submit(long, max_new_tokens=left_tokens)
    for _ in range(4):
        bench.step()
    for _ in range(num_waiting):
        prompt = np.concatenate([shared, _ids(random, own_tokens)])
        bench.submit(prompt, max_new_tokens=128)
    return bench


def idle_plans_ms(bench: Bench, *, count: int) -> Iterator[float]:
    """CPU time of plans between which nothing changes but one row's decoded token."""
    while bench.state.running and bench.step().chunks:
        pass
    for _ in range(count):
        version = bench.state.cache.version
        step, elapsed_ms = bench.plan()
        assert step is not None
        settle(bench.state, result_of(step))
        if bench.state.cache.version == version:
            yield elapsed_ms


def plans_after_commit_ms(bench: Bench, *, count: int) -> Iterator[float]:
    """CPU time of the plan that follows a commit of 2,048 tokens, settle included."""
    for _ in range(count):
        step, _ = bench.plan()
        assert step is not None
        assert sum(len(chunk.token_ids) for chunk in step.chunks) >= 2048 * TOKEN_BYTES
        started = time.thread_time()
        settle(bench.state, result_of(step))
        settled_ms = (time.thread_time() - started) * 1e3
        following, planned_ms = bench.plan()
        assert following is not None
        settle(bench.state, result_of(following))
        yield settled_ms + planned_ms


def decode_steps_ms(*, num_running: int, count: int) -> Iterator[float]:
    """CPU time of a decode step: plan, its message, the result's message, settle, the replies' message."""
    random = np.random.default_rng(6)
    bench = make_bench(pool_tokens=num_running * 4096, max_running=num_running)
    for _ in range(num_running):
        bench.submit(_ids(random, 64), max_new_tokens=2048)
    while bench.step().chunks or len(bench.state.running) < num_running:
        pass
    for _ in range(count):
        bench.now_s += STEP_S
        started = time.thread_time()
        step = plan(bench.state, now_s=bench.now_s)
        assert step is not None
        encode(step)
        planned = time.thread_time() - started
        assert len(step.decodes) == num_running * TOKEN_BYTES
        frame = encode(result_of(step))
        started = time.thread_time()
        result = decode_from_runner(frame)
        assert isinstance(result, StepResult)
        encode([reply.message for reply in settle(bench.state, result)])
        yield (planned + time.thread_time() - started) * 1e3


def _ids(random: np.random.Generator, num_tokens: int) -> Ids:
    return random.integers(2, VOCABULARY, num_tokens, np.int32)
