"""Requests that have ended leave nothing behind that grows without end: whatever they were, whoever sent them."""

from __future__ import annotations

import random

import pytest

from radix import ideals
from scheduler import intake, output_length
from scheduler.config import SchedulerConfig
from tests.reachable import num_reachable
from tests.scheduler.fake_runner import VOCABULARY
from tests.scheduler.harness import CLIENT, Harness, make_harness
from wire.messages.to_tokenizer import Done

NUM_ROUNDS = 10
NUM_REQUESTS = 240
AT_ONCE = 8


def serve_others(harness: Harness, draw: random.Random, first: int) -> None:
    """Requests none of which is like another; some share a beginning, some are cancelled."""
    for i in range(first, first + NUM_REQUESTS):
        prompt = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(2, 60))]
        if i % 3 == 0:
            prompt[:8] = range(8)
        harness.submit(f"request {i}", prompt, salt=f"salt {i}" if i % 2 else "", max_new_tokens=draw.randrange(1, 9))
        if i % 5 == 0:
            harness.take(intake.cancel(harness.state, CLIENT, f"request {i}"))
        if i % AT_ONCE == AT_ONCE - 1:
            harness.run()
            harness.state.cache.evict_ahead()


@pytest.mark.parametrize("with_reports", [True, False])
def test_what_ended_requests_leave_behind_is_bounded(with_reports: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_length, "MAX_NAMESPACES", 16)
    monkeypatch.setattr(ideals, "_LEAST_FOLLOWED", 512)
    monkeypatch.setattr(ideals, "_MOST_FORGOTTEN", 512)
    config = SchedulerConfig(max_running=8, explain_misses=with_reports, gap_report=with_reports)
    harness, draw = make_harness(num_pages=128, config=config), random.Random(7)
    counts = []
    for i in range(NUM_ROUNDS):
        serve_others(harness, draw, i * NUM_REQUESTS)
        counts.append(num_reachable(harness.state))
    assert all(isinstance(end, Done) for end in harness.terminal.values())
    assert max(counts[NUM_ROUNDS // 2 :]) < 1.05 * max(counts[: NUM_ROUNDS // 2]), counts
