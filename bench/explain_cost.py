"""What does it cost the scheduler to explain a miss? CPU time, by the prompt's length and how many others compute.

Then what a request costs more in all, with the account of pages and sessions that explanations need: chats of four
turns go through the scheduler with and without, while the pool has room and while it is full.

python -m bench.explain_cost
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence

import numpy as np

from radix.cache import Namespace
from scheduler import intake
from scheduler.config import SchedulerConfig
from scheduler.plan import plan
from scheduler.request import ClientId, Request
from scheduler.settle import settle
from scheduler.state import Limits, State, make_state
from wire.messages.encoding import ids_to_bytes
from wire.messages.from_runner import StepResult
from wire.messages.to_scheduler import Submit
from wire.sampling import SamplingParams

from . import results
from .command import exit_status, parser_of
from .tree_shapes import PAGE_TOKENS, middle

VOCABULARY = 1 << 17
ROUNDS = 5
WITH = SchedulerConfig(gap_report=False)
WITHOUT = SchedulerConfig(gap_report=False, explain_misses=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = parser_of("bench.explain_cost", __doc__)
    parser.add_argument("--repeats", type=int, default=300, help="explanations of each kind (default: 300)")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    gc.disable()
    figures: dict[str, float] = {}
    for num_tokens, num_running in ((1_000, 8), (8_000, 8), (32_000, 8), (8_000, 64)):
        state = serving(num_running)
        for kind in ("forked", "evicted", "extended"):
            name = f"{kind}_{num_tokens // 1000}k_{num_running}_others_us"
            figures[name] = middle(explanations_us(state, kind, num_tokens, repeats=args.repeats))
            print(f"{name:<32}{figures[name]:>10.1f}", flush=True)
    for name, pool_tokens in (("room", 1 << 20), ("full", 1 << 15)):
        with_us, without_us = (
            [request_us(config, pool_tokens=pool_tokens) for _ in range(ROUNDS)] for config in (WITH, WITHOUT)
        )
        figures[f"request_more_pool_{name}_us"] = more_us = middle(with_us) - middle(without_us)
        print(f"{f'request_more_pool_{name}_us':<32}{more_us:>10.1f}  of {middle(with_us):.0f}", flush=True)
    results.write(args.json, figures, results.command_line("bench.explain_cost"))
    return 0


def serving(num_running: int) -> State:
    """A scheduler that computes so many prompts."""
    limits = Limits(model_fingerprint="bench", context_tokens=1 << 20, vocabulary=VOCABULARY, pool_tokens=1 << 20)
    state = make_state(SchedulerConfig(max_running=num_running + 1), limits, page_tokens=PAGE_TOKENS)
    random = np.random.default_rng(3)
    for i in range(num_running):
        submit(state, f"running {i}", random.integers(0, VOCABULARY, 64, np.int32))
    while state.waiting:
        plan(state, now_s=0.0)
        state.in_flight.clear()
    state.prefilling.update((running.row, running) for running in state.running.values())
    return state


def submit(state: State, request_id: str, token_ids: np.ndarray, *, max_new_tokens: int = 16) -> Request:
    sampling = SamplingParams(max_new_tokens=max_new_tokens, seed=0)
    message = Submit(request_id=request_id, token_ids=token_ids.tobytes(), sampling=sampling)
    assert not intake.submit(state, ClientId(b"bench"), message, now_s=0.0)
    request = state.waiting.get(request_id)
    assert request is not None
    return request


def explanations_us(state: State, kind: str, num_tokens: int, *, repeats: int) -> list[float]:
    """CPU time of explaining a request whose first half is cached, each time."""
    random = np.random.default_rng(len(state.cache.leases) + num_tokens + len(kind))
    known = random.integers(0, VOCABULARY, num_tokens, np.int32)
    namespace = Namespace("bench", None, "")
    half = num_tokens // 2 // PAGE_TOKENS * PAGE_TOKENS
    cached = known if kind == "forked" else known[:half]
    lease = state.cache.lease(namespace, cached, max_reuse_tokens=0)
    state.cache.extend(lease, len(known))
    if kind == "evicted":
        state.cache.commit(lease, known)
        state.cache.core.forget(lease.page_ids[half // PAGE_TOKENS])
    state.cache.release(lease, cached)
    prompt = known.copy()
    if kind != "evicted":
        prompt[half:] += 1
        prompt %= VOCABULARY
    request = submit(state, f"{kind} {num_tokens}", prompt)
    assert state.explainer is not None
    times = []
    for _ in range(repeats):
        lease = state.cache.lease(namespace, prompt, max_reuse_tokens=num_tokens - 1)
        started = time.thread_time()
        miss = state.explainer.explain(request, lease, state.prefilling.values())
        times.append((time.thread_time() - started) * 1e6)
        assert miss is not None
        assert miss.cause == {"extended": "never_seen"}.get(kind, kind), miss.cause
        state.cache.release(lease, prompt[:0])
    state.waiting.remove(request)
    return times


def request_us(config: SchedulerConfig, *, pool_tokens: int, num_requests: int = 400) -> float:
    """CPU time of a request of 1,000 tokens and more, half of them shared by all, from its arrival to its end."""
    limits = Limits(model_fingerprint="bench", context_tokens=1 << 20, vocabulary=VOCABULARY, pool_tokens=pool_tokens)
    state = make_state(config, limits, page_tokens=PAGE_TOKENS)
    random = np.random.default_rng(5)
    shared = random.integers(0, VOCABULARY, 500, np.int32)
    chat = shared
    started = time.thread_time()
    for i in range(num_requests):
        chat = np.concatenate(
            [chat if i % 4 else shared, random.integers(0, VOCABULARY, 100 if i % 4 else 500, np.int32)]
        )
        submit(state, f"request {i}", chat, max_new_tokens=1)
        while plan(state, now_s=i / 10.0) is not None or state.in_flight:
            sent = state.in_flight[0]
            num_sampled = len(sent.decodes) + sum(chunk.is_sampled for _, chunk in sent.chunks)
            settle(state, StepResult(step=sent.step, token_ids=ids_to_bytes([7] * num_sampled), elapsed_s=0.01))
    return (time.thread_time() - started) / num_requests * 1e6


if __name__ == "__main__":
    sys.exit(exit_status(main))
