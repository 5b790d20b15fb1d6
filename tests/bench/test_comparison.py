from __future__ import annotations

import pytest

from bench.comparison import named_figures, ratios, spreads, table

FAST = [
    {"ttft_p50_ms": 10.0, "ok_count": 5},
    {"ttft_p50_ms": 30.0, "ok_count": 5},
    {"ttft_p50_ms": 20.0, "ok_count": 4},
]
SLOW = [{"ttft_p50_ms": 50.0, "itl_p50_ms": 3.0, "ok_count": 5}]
ZERO = [{"ttft_p50_ms": 0.0, "itl_p50_ms": 6.0}]


def test_repeats_come_to_a_median_between_the_lowest_and_the_highest_and_counts_are_summed() -> None:
    found = spreads(FAST)
    assert str(found["ttft_p50_ms"]) == "20 (10 to 30)"
    assert str(found["ok_count"]) == "14"


def test_ratios_are_those_of_the_medians_to_the_first_servers() -> None:
    assert ratios({"fast": FAST, "slow": SLOW}) == {"slow": {"ttft_p50_ms": 2.5}}
    assert ratios({"slow": SLOW, "fast": FAST, "zero": ZERO}) == {
        "fast": {"ttft_p50_ms": 0.4},
        "zero": {"ttft_p50_ms": 0.0, "itl_p50_ms": 2.0},
    }
    assert ratios({"zero": ZERO, "slow": SLOW}) == {"slow": {"itl_p50_ms": 0.5}}


def test_the_table_has_a_ratio_beside_every_server_but_the_first_and_says_what_was_not_told() -> None:
    lines = [line.split() for line in table({"fast": [*FAST, {"cached_share_percent": 9}], "slow": SLOW}).splitlines()]
    assert lines[0] == ["fast", "slow", "x"]
    assert ["ttft_p50_ms", "20", "(10", "to", "30)", "50", "2.50"] in lines
    assert ["cached_share_percent", "9", "not", "told"] in lines
    assert ["itl_p50_ms", "-", "3"] in lines


def test_figures_say_whose_they_are_how_they_spread_and_how_they_compare() -> None:
    figures = named_figures("w9", {"fast": FAST, "slow": SLOW})
    assert figures["fast_w9_ttft_p50_ms"] == 20
    assert figures["fast_w9_ttft_p50_ms_spread_percent"] == pytest.approx(100)
    assert "slow_w9_ttft_p50_ms_spread_percent" not in figures
    assert figures["slow_over_fast_w9_ttft_p50_ms_ratio"] == 2.5
