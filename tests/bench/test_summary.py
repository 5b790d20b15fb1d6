from __future__ import annotations

import pytest

from bench.summary import Answer, Failure, Run, Sent, failures_by_kind, merged, percentile, summarise, table


def _sent(
    *, conversation: int, prompt: int, cached: int | None, group: int = 0, turn: int = 0, completion: int = 1
) -> Sent:
    answer = Answer(
        text="a",
        ttft_s=0.5,
        gaps_s=(0.1, 0.3),
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
    )
    return Sent(conversation=conversation, turn=turn, group=group, result=answer)


def test_percentiles_interpolate_between_neighbours() -> None:
    values = [40.0, 10.0, 30.0, 20.0]
    assert [percentile(values, percent) for percent in (0, 50, 95, 100)] == [10.0, 25.0, pytest.approx(38.5), 40.0]
    assert percentile([7.0], 95) == 7.0
    with pytest.raises(ValueError, match="of 0 values"):
        percentile([], 50)


def test_throughput_and_latency_count_answered_requests_only() -> None:
    failed = Sent(conversation=1, turn=0, group=1, result=Failure("timeout", "slow"))
    figures = summarise(Run(sent=[_sent(conversation=0, prompt=100, cached=0, completion=3), failed], duration_s=2.0))
    assert (figures["requests_ok_count"], figures["requests_failed_count"]) == (1, 1)
    assert (figures["input_tokens_per_s"], figures["output_tokens_per_s"]) == (50.0, 1.5)
    assert (figures["ttft_p50_ms"], figures["itl_p50_ms"]) == (500.0, pytest.approx(200.0))


def test_all_but_the_one_that_computed_a_groups_prefix_could_share_it() -> None:
    sent = [
        _sent(conversation=0, prompt=100, cached=80),
        _sent(conversation=1, prompt=100, cached=0),
        _sent(conversation=2, prompt=100, cached=40),
        _sent(conversation=3, prompt=200, cached=0, group=1),
    ]
    figures = summarise(Run(sent=sent, duration_s=1.0, prefix_tokens={0: 80, 1: 150}))
    assert figures["cached_share_percent"] == pytest.approx(100 * 120 / 500)
    assert figures["shareable_share_percent"] == pytest.approx(100 * 160 / 500)
    assert figures["shareable_hit_percent"] == pytest.approx(100 * 120 / 160)


def test_a_chat_turn_could_share_all_of_the_turn_before_but_the_last_token() -> None:
    sent = [
        _sent(conversation=0, turn=0, prompt=50, cached=0, completion=11),
        _sent(conversation=0, turn=1, prompt=100, cached=45, completion=1),
    ]
    figures = summarise(Run(sent=sent, duration_s=1.0))
    assert figures["shareable_hit_percent"] == pytest.approx(100 * 45 / 60)


def test_hits_beyond_what_a_request_shares_do_not_raise_the_figure() -> None:
    sent = [_sent(conversation=i, prompt=100, cached=100) for i in range(3)]
    figures = summarise(Run(sent=sent, duration_s=1.0, prefix_tokens={0: 50}))
    assert figures["shareable_hit_percent"] == 100.0


def test_reuse_is_not_told_when_one_answer_does_not_tell_it() -> None:
    sent = [_sent(conversation=0, prompt=100, cached=50), _sent(conversation=1, prompt=100, cached=None)]
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
