from __future__ import annotations

import argparse

import pytest

from bench import step_share
from bench.command import CannotMeasure
from bench.step_share import BUSY, IDLE, RunnerTime, runner_time, share_percent
from tests.bench.fake_openai import FakeOpenAI, running


def _metrics(busy_s: float, idle_s: float) -> str:
    return f"# TYPE {BUSY} counter\n{BUSY} {busy_s}\n# TYPE {IDLE} counter\n{IDLE} {idle_s}\n"


def _args(*, output_tokens: int) -> argparse.Namespace:
    return argparse.Namespace(batch=8, output_tokens=output_tokens, window=0.05, windows=2)


def test_the_share_is_waiting_time_of_all_time_between_two_readings() -> None:
    assert share_percent(RunnerTime(10.0, 100.0), RunnerTime(19.0, 101.0)) == pytest.approx(10.0)


def test_the_counters_are_read_from_the_metrics_text_and_summed_over_labels() -> None:
    text = (
        f'# TYPE {BUSY} counter\n{BUSY}{{rank="0"}} 1.5\n{BUSY}{{rank="1"}} 2.0\n# TYPE {IDLE} counter\n{IDLE} 0.25\n'
    )
    assert runner_time(text) == RunnerTime(3.5, 0.25)


def test_a_missing_counter_is_named() -> None:
    with pytest.raises(CannotMeasure, match=f"no {IDLE}"):
        runner_time(f"# TYPE {BUSY} counter\n{BUSY} 1.0\n")


async def test_windows_are_measured_between_fresh_readings_while_all_decode() -> None:
    readings = [(0, 50), (0, 50), (1, 50), (10, 51), (10, 51), (14, 55), (18, 59)]
    fake = FakeOpenAI(metrics=[_metrics(*reading) for reading in readings])
    with running(fake) as url:
        shares = await step_share.measure(url, _args(output_tokens=100_000))
        assert shares == [pytest.approx(10.0), pytest.approx(50.0)]
    assert fake.most_open == 8
    assert fake.num_open == 0


async def test_decodes_that_end_before_the_last_window_are_an_error_not_a_figure() -> None:
    fake = FakeOpenAI(metrics=[_metrics(second, 1) for second in range(100)])
    with running(fake) as url, pytest.raises(CannotMeasure, match="raise --output-tokens"):
        await step_share.measure(url, _args(output_tokens=5))


async def test_a_decode_that_fails_is_reported() -> None:
    fake = FakeOpenAI(trouble={3: "refuse"}, metrics=[_metrics(1, 1)])
    with running(fake) as url, pytest.raises(CannotMeasure, match="HTTP 400"):
        await step_share.measure(url, _args(output_tokens=100_000))


async def test_counters_that_stand_still_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_share, "FRESH_WITHIN_S", 0.1)
    fake = FakeOpenAI(metrics=[_metrics(1, 1)])
    with running(fake) as url, pytest.raises(CannotMeasure, match="stood still"):
        await step_share.measure(url, _args(output_tokens=100_000))
