from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import warm_ttft
from bench.command import CannotMeasure
from bench.warm_ttft import Pair, figures_of
from tests.bench.fake_openai import FakeOpenAI, running


def test_the_ratio_is_of_the_medians() -> None:
    pairs = [Pair(prompt_tokens=2000, cold_ms=cold, warm_ms=warm) for cold, warm in ((100, 9), (900, 10), (200, 40))]
    assert figures_of(pairs) == {
        "ttft_cold_2000_ms": 200,
        "ttft_warm_2000_ms": 10,
        "ttft_warm_over_cold_ratio": 0.05,
    }


def test_every_prompt_is_new_and_sent_twice(tmp_path: Path) -> None:
    fake = FakeOpenAI()
    path = tmp_path / "result.json"
    with running(fake) as url:
        assert warm_ttft.main(["--url", url, "--repeats", "3", "--json", str(path)]) == 0
    measured = fake.prompts[1:]
    assert measured[0::2] == measured[1::2]
    assert len(set(fake.prompts)) == 4
    assert fake.num_flushes == 3
    assert {len(prompt.split()) for prompt in measured} == {2000}
    assert set(json.loads(path.read_text())["figures"]) == {
        "ttft_cold_2000_ms",
        "ttft_warm_2000_ms",
        "ttft_warm_over_cold_ratio",
    }


def test_a_cold_prompt_that_was_cached_is_an_error_not_a_figure() -> None:
    fake = FakeOpenAI(has_flush=False)
    with running(fake) as url:
        warm_ttft.main(["--url", url, "--repeats", "1"])
        with pytest.raises(CannotMeasure, match="of a cold prompt were cached"):
            warm_ttft.main(["--url", url, "--repeats", "1"])


def test_a_failed_request_is_reported() -> None:
    with running(FakeOpenAI(trouble={1: "refuse"})) as url, pytest.raises(CannotMeasure, match="HTTP 400"):
        warm_ttft.main(["--url", url])
