from __future__ import annotations

import pytest

from runtime.recent import RecentHits
from wire.messages.to_tokenizer import Stats


def _stats(prompt: int, cached: int) -> Stats:
    return Stats(prompt_tokens_total=prompt, cached_tokens_total=cached)


def test_a_collapse_shows_within_a_minute_and_not_only_in_the_long_run() -> None:
    hits = RecentHits()
    for second in range(600):
        hits.take(_stats(1000 * second, 900 * second), now_s=1000.0 + second)
    assert hits.rate == pytest.approx(0.9)
    for second in range(600, 665):
        hits.take(_stats(1000 * second, 900 * 599), now_s=1000.0 + second)
    assert hits.rate == 0.0


def test_without_prompts_there_is_no_rate_and_an_old_one_is_forgotten() -> None:
    hits = RecentHits()
    assert hits.rate is None
    hits.take(_stats(10, 5), now_s=100.0)
    assert hits.rate == 0.5
    for second in range(101, 170):
        hits.take(_stats(10, 5), now_s=float(second))
    assert hits.rate is None


def test_figures_that_are_asked_for_all_the_time_cost_no_memory() -> None:
    hits = RecentHits()
    for i in range(100_000):
        hits.take(_stats(i, i), now_s=i / 1000)
    assert hits.rate == 1.0
    assert len(hits._seen) < 250
