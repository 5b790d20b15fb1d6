from __future__ import annotations

import pytest

from bench.reuse import Exchange
from bench.summary import Answer, Failure, Run, Sent, failures_by_kind, merged, percentile, summarise, table


def _sent(*, prompt: str, at: int, cached: int | None, says: str = "x", label: str = "") -> Sent:
    """A request whose tokens are characters, sent at a second and answered half a second later."""
    answer = Answer(
        pieces=tuple(says),
        token_ids=None,
        ttft_s=0.5,
        gaps_s=(0.1, 0.3),
        prompt_tokens=len(prompt),
        completion_tokens=len(says),
        cached_tokens=cached,
    )
    exchange = Exchange(prompt=prompt, sent_s=at, known=prompt + says[:-1], ended_s=at + 0.5)
    return Sent(label=label, result=answer, exchange=exchange)


def test_percentiles_interpolate_between_neighbours() -> None:
    values = [40.0, 10.0, 30.0, 20.0]
    assert [percentile(values, percent) for percent in (0, 50, 95, 100)] == [10.0, 25.0, pytest.approx(38.5), 40.0]
    assert percentile([7.0], 95) == 7.0
    with pytest.raises(ValueError, match="of 0 values"):
        percentile([], 50)


def test_throughput_and_latency_count_answered_requests_only() -> None:
    failed = Sent(label="", result=Failure("timeout", "slow"), exchange=None)
    answered = _sent(prompt="p" * 100, at=0, cached=0, says="abc")
    figures = summarise(Run(sent=[answered, failed], duration_s=2.0))
    assert (figures["requests_ok_count"], figures["requests_failed_count"]) == (1, 1)
    assert (figures["input_tokens_per_s"], figures["output_tokens_per_s"]) == (50.0, 1.5)
    assert (figures["ttft_p50_ms"], figures["itl_p50_ms"]) == (500.0, pytest.approx(200.0))


def test_labels_have_latencies_of_their_own() -> None:
    sent = [_sent(prompt="a", at=0, cached=0, label="hot"), _sent(prompt="b", at=1, cached=0, label="cold")]
    figures = summarise(Run(sent=sent, duration_s=1.0))
    assert figures["ttft_hot_p99_ms"] == figures["ttft_cold_p50_ms"] == 500.0
    assert "ttft_hot_p99_ms" not in summarise(Run(sent=sent[1:], duration_s=1.0))


def test_hits_and_prefill_are_set_against_what_an_ideal_cache_would_have_held() -> None:
    prefix = "s" * 80
    sent = [
        _sent(prompt=prefix + "a" * 20, at=0, cached=0),
        _sent(prompt=prefix + "b" * 20, at=1, cached=80),
        _sent(prompt=prefix + "c" * 20, at=2, cached=40),
        _sent(prompt="d" * 200, at=3, cached=0),
    ]
    figures = summarise(Run(sent=sent, duration_s=1.0))
    assert figures["cached_share_percent"] == pytest.approx(100 * 120 / 500)
    assert figures["shareable_share_percent"] == pytest.approx(100 * 160 / 500)
    assert figures["shareable_hit_percent"] == pytest.approx(100 * 120 / 160)
    assert figures["prefill_over_ideal_ratio"] == pytest.approx(380 / 340)


def test_what_the_warm_up_brought_is_shareable_and_its_requests_are_not_counted() -> None:
    run = Run(
        sent=[_sent(prompt="s" * 50 + "a" * 50, at=1, cached=50)],
        duration_s=1.0,
        warmup=[_sent(prompt="s" * 50, at=0, cached=0)],
    )
    figures = summarise(run)
    assert figures["requests_ok_count"] == 1
    assert figures["shareable_share_percent"] == pytest.approx(50)


def test_hits_beyond_what_a_request_shares_do_not_raise_the_figure() -> None:
    sent = [_sent(prompt="s" * 50 + letter * 50, at=at, cached=100) for at, letter in enumerate("abc")]
    assert summarise(Run(sent=sent, duration_s=1.0))["shareable_hit_percent"] == 100.0


def test_reuse_is_not_told_when_one_answer_does_not_tell_it() -> None:
    sent = [_sent(prompt="ab", at=0, cached=1), _sent(prompt="ab", at=1, cached=None)]
    assert "cached_share_percent" not in summarise(Run(sent=sent, duration_s=1.0))


def test_repeats_merge_to_medians_and_summed_counts() -> None:
    rows = [{"ttft_p50_ms": 1.0, "ok_count": 2}, {"ttft_p50_ms": 9.0, "ok_count": 3}, {"ttft_p50_ms": 2.0}]
    assert merged(rows) == {"ttft_p50_ms": 2.0, "ok_count": 5}


def test_a_table_has_a_dash_where_a_column_lacks_a_figure() -> None:
    lines = table({"first": {"a_ms": 1.5, "b_ms": 2000.0}, "second": {"a_ms": 2.25}}).splitlines()
    assert [line.split() for line in lines] == [["first", "second"], ["a_ms", "1.50", "2.25"], ["b_ms", "2,000", "-"]]
    assert len({len(line) for line in lines}) == 1


def test_failures_are_shown_by_kind_with_the_first_ones_words() -> None:
    failures = [Failure("timeout", "first"), Failure("HTTP 400", "bad"), Failure("timeout", "second")]
    assert failures_by_kind(failures).splitlines() == ["2 x timeout: first", "1 x HTTP 400: bad"]
