from __future__ import annotations

from scheduler.stats import make_stats
from tests.scheduler.harness import Harness, make_harness


def test_the_backlog_is_what_no_cached_page_has_and_counts_shared_pages_once() -> None:
    harness = make_harness(page_tokens=4)
    harness.submit("cached", list(range(8)), max_new_tokens=1)
    harness.run()
    harness.submit("a", [*range(16), 1, 2, 3, 4, 0], max_new_tokens=1)
    harness.submit("b", [*range(16), 5, 6, 7, 8, 9], max_new_tokens=1)
    assert _pending(harness) == 8 + 4 + 4
    harness.run()
    assert _pending(harness) == 0


def _pending(harness: Harness) -> int:
    return make_stats(harness.state, now_s=0.0, scheduler_busy_s=0.0, stuck=None).pending_tokens
