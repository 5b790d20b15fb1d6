from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import serve
from bench.command import CannotMeasure
from tests.bench.fake_openai import FakeOpenAI, running

SMALL = [
    "--groups",
    "3",
    "--per-group",
    "4",
    "--prefix-tokens",
    "160",
    "--question-tokens",
    "40",
    "--output-tokens",
    "16",
]


def _figures(fake: FakeOpenAI, path: Path, *flags: str) -> tuple[int, dict[str, float]]:
    with running(fake) as url:
        status = serve.main(["--url", url, "--json", str(path / "result.json"), *flags])
    return status, json.loads((path / "result.json").read_text())["figures"]


def test_shared_prefixes_count_as_reused_and_every_request_is_accounted_for(tmp_path: Path) -> None:
    status, figures = _figures(FakeOpenAI(), tmp_path, *SMALL, "--closed", "1")
    assert status == 0
    assert (figures["w9_requests_ok_count"], figures["w9_requests_failed_count"]) == (12, 0)
    assert figures["w9_shareable_share_percent"] == pytest.approx(100 * 9 * 20 / (12 * 25))
    assert figures["w9_cached_share_percent"] >= figures["w9_shareable_share_percent"]
    assert figures["w9_shareable_hit_percent"] == 100.0
    assert figures["w9_ttft_p95_ms"] >= figures["w9_ttft_p50_ms"] > 0
    assert figures["w9_itl_p95_ms"] >= figures["w9_itl_p50_ms"] > 0
    assert figures["w9_input_tokens_per_s"] == pytest.approx(figures["w9_output_tokens_per_s"] * 25 / 2)


def test_a_chat_sends_the_real_answers_back_and_finds_the_turns_before(tmp_path: Path) -> None:
    fake = FakeOpenAI()
    status, figures = _figures(fake, tmp_path, "--shape", "w6", "--groups", "2", "--closed", "1")
    assert status == 0
    first, second = fake.prompts[:2]
    assert second.startswith(f"{first}  answer1 answer2 answer3 answer4")
    assert figures["w6_short_requests_ok_count"] == 8
    assert figures["w6_short_shareable_hit_percent"] == 100.0


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        ("refuse", "HTTP 400: "),
        ("break", "error in stream: "),
        ("cut", "stream cut short: "),
        ("no usage", "no usage: "),
        ("hang", "timeout: "),
    ],
)
def test_a_failed_request_is_counted_and_named_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trouble: str, kind: str
) -> None:
    status, figures = _figures(FakeOpenAI(trouble={2: trouble}), tmp_path, *SMALL, "--request-timeout", "1")
    assert status == 1
    assert (figures["w9_requests_ok_count"], figures["w9_requests_failed_count"]) == (11, 1)
    assert f"1 x {kind}" in capsys.readouterr().err


def test_the_turns_after_a_failed_one_are_not_sent_and_count_as_failed(tmp_path: Path) -> None:
    fake = FakeOpenAI(trouble={1: "refuse"})
    status, figures = _figures(fake, tmp_path, "--shape", "w6", "--groups", "1")
    assert status == 1
    assert len(fake.prompts) == 2
    assert (figures["w6_short_requests_ok_count"], figures["w6_short_requests_failed_count"]) == (1, 3)


def test_the_time_limit_ends_a_run_and_counts_what_was_not_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeOpenAI(trouble=dict.fromkeys(range(12), "hang"))
    status, figures = _figures(fake, tmp_path, *SMALL, "--closed", "2", "--time-limit", "0.5")
    assert status == 1
    assert figures["w9_requests_failed_count"] == 12
    assert "10 x time limit: " in capsys.readouterr().err


def test_a_closed_loop_keeps_to_its_concurrency(tmp_path: Path) -> None:
    fake = FakeOpenAI()
    assert _figures(fake, tmp_path, *SMALL, "--closed", "3")[0] == 0
    assert fake.most_open == 3


def test_an_open_loop_does_not_wait_for_answers(tmp_path: Path) -> None:
    fake = FakeOpenAI()
    assert _figures(fake, tmp_path, *SMALL, "--output-tokens", "400", "--open", "10000")[0] == 0
    assert fake.most_open == 12


def test_repeats_have_words_of_their_own_and_are_flushed_between(tmp_path: Path) -> None:
    fake = FakeOpenAI()
    _, figures = _figures(fake, tmp_path, *SMALL, "--requests", "5", "--repeats", "2", "--flush")
    assert figures["w9_requests_ok_count"] == 10
    assert fake.num_flushes == 2
    prompts = [prompt for prompt in fake.prompts if len(prompt.split()) == 25]
    assert len(set(prompts)) == 10


def test_a_server_without_flush_and_cache_report_is_measured_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeOpenAI(has_flush=False, reports_cached=False)
    status, figures = _figures(fake, tmp_path, *SMALL, "--flush")
    assert status == 0
    assert "w9_cached_share_percent" not in figures
    assert "no /flush_cache" in capsys.readouterr().err


def test_another_machine_is_not_loaded_unless_asked_for() -> None:
    with pytest.raises(CannotMeasure, match=r"192\.0\.2\.1.*--allow-remote"):
        serve.main(["--url", "http://192.0.2.1:30000"])


def test_no_server_is_one_clear_error() -> None:
    with pytest.raises(CannotMeasure, match=r"/v1/models does not answer.*--launch"):
        serve.main(["--url", "http://127.0.0.1:9"])


@pytest.mark.parametrize("flags", [["--shape", "w6", "--prefix-tokens", "9"], ["--answers", "long"], ["--closed", "0"]])
def test_flags_that_mean_nothing_are_refused(flags: list[str]) -> None:
    with pytest.raises(SystemExit):
        serve.parse(flags)


@pytest.mark.parametrize("flags", [["--launch", "--url", "http://127.0.0.1:1"], ["--serve-flags=--no-overlap"]])
def test_flags_that_contradict_each_other_are_refused(flags: list[str]) -> None:
    with pytest.raises(CannotMeasure, match="--launch"):
        serve.main(flags)
