from __future__ import annotations

import re

import pytest

from model_runner.config import RunnerConfig
from model_runner.errors import StartError
from model_runner.kv_pool import MIN_AUTO_PAGES, check_context_fits, choose_num_pages

GIB = 1 << 30


def _choose(
    *,
    free_bytes: int,
    max_total_tokens: int | None = None,
    max_total_bytes: int | None = None,
    mem_fraction: float = 0.5,
) -> int:
    return choose_num_pages(
        page_tokens=16,
        token_bytes=1024,
        free_bytes=free_bytes,
        max_total_tokens=max_total_tokens,
        max_total_bytes=max_total_bytes,
        mem_fraction=mem_fraction,
    )


def test_auto_takes_the_fraction_of_free_memory() -> None:
    assert _choose(free_bytes=GIB, mem_fraction=0.25) == GIB // 4 // (16 * 1024)


def test_a_token_count_is_rounded_down_to_whole_pages() -> None:
    assert _choose(free_bytes=GIB, max_total_tokens=1000) == 62


def test_bytes_are_rounded_down_to_whole_pages_and_are_two_at_least() -> None:
    assert _choose(free_bytes=GIB, max_total_bytes=1_000_000) == 61
    with pytest.raises(StartError, match=r"--max-total-bytes must be at least two pages \(32768\), got 32767"):
        _choose(free_bytes=GIB, max_total_bytes=32767)


def test_tokens_and_bytes_together_are_refused() -> None:
    with pytest.raises(ValueError, match="leave one out"):
        RunnerConfig(max_total_tokens=4096, max_total_bytes=1 << 30)


def test_a_count_that_does_not_fit_is_refused_with_one_that_does() -> None:
    with pytest.raises(StartError, match="--max-total-tokens") as caught:
        _choose(free_bytes=GIB, max_total_tokens=2_000_000)
    works = re.search(r"to at most (\d+)", str(caught.value))
    assert works is not None
    assert _choose(free_bytes=GIB, max_total_tokens=int(works[1])) > 50_000
    with pytest.raises(StartError, match=r"--max-total-bytes 1073741824 needs 1\.00 GiB") as caught:
        _choose(free_bytes=GIB, max_total_bytes=GIB)
    works = re.search(r"--max-total-bytes to at most (\d+)", str(caught.value))
    assert works is not None
    assert 0.8 * GIB < 16 * 1024 * _choose(free_bytes=GIB, max_total_bytes=int(works[1])) < GIB


def test_a_fraction_that_is_too_small_is_refused_with_one_that_is_not() -> None:
    free = 100 * MIN_AUTO_PAGES * 16 * 1024
    with pytest.raises(StartError, match="--mem-fraction") as caught:
        _choose(free_bytes=free, mem_fraction=0.001)
    works = re.search(r"raise --mem-fraction to ([\d.]+)", str(caught.value))
    assert works is not None
    assert _choose(free_bytes=free, mem_fraction=float(works[1])) >= MIN_AUTO_PAGES


def test_a_context_that_the_pool_cannot_hold_is_refused_with_numbers_that_work() -> None:
    def check(context_tokens: int, max_total_tokens: int) -> None:
        num_pages = _choose(free_bytes=GIB, max_total_tokens=max_total_tokens)
        check_context_fits(context_tokens, num_pages=num_pages, page_tokens=16, is_asked_for=True)

    check(64, 64)
    with pytest.raises(StartError, match="--context-length 100") as caught:
        check(100, 64)
    works = re.search(r"--max-total-tokens to at least (\d+), or --context-length to at most (\d+)", str(caught.value))
    assert works is not None
    check(100, int(works[1]))
    check(int(works[2]), 64)


def test_a_model_with_a_context_beyond_the_pool_is_served_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    check_context_fits(100, num_pages=4, page_tokens=16, is_asked_for=False)
    assert "--max-total-tokens 112" in caplog.text


def test_too_little_memory_for_any_fraction_says_how_much_is_needed() -> None:
    with pytest.raises(StartError, match="smaller model"):
        _choose(free_bytes=MIN_AUTO_PAGES * 1024)
