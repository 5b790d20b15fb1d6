from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import counters, serve
from bench.command import CannotMeasure
from tests.bench.fake_openai import FakeOpenAI, running
from tests.fakes import byte_tokenizer

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


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save(str(path / "tokenizer.json"))
    return path


def _figures(fake: FakeOpenAI, path: Path, *flags: str) -> tuple[int, dict[str, float]]:
    with running(fake) as url:
        status = serve.main(["--url", url, "--json", str(path / "result.json"), *flags])
    return status, json.loads((path / "result.json").read_text())["figures"]


def test_shared_prefixes_count_as_reused_and_every_request_is_accounted_for(tmp_path: Path) -> None:
    status, figures = _figures(FakeOpenAI(), tmp_path, *SMALL, "--closed", "1")
    assert status == 0
    assert (figures["w9_requests_ok_count"], figures["w9_requests_failed_count"]) == (12, 0)
    assert figures["w9_shareable_share_percent"] == pytest.approx(100 * 9 * 20 / (12 * 25), rel=0.05)
    assert figures["w9_cached_share_percent"] == pytest.approx(100 * 9 * 20 / (12 * 25), rel=0.05)
    assert figures["w9_shareable_hit_percent"] == pytest.approx(100, abs=2)
    assert figures["w9_prefill_over_ideal_ratio"] == pytest.approx(1, abs=0.05)
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
    assert figures["w6_short_shareable_hit_percent"] == pytest.approx(100, abs=1)
    assert set(fake.routes) == {"/v1/chat/completions"}


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
    timeout_s = "5" if trouble == "hang" else "60"
    status, figures = _figures(FakeOpenAI(trouble={2: trouble}), tmp_path, *SMALL, "--request-timeout", timeout_s)
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
    status, figures = _figures(fake, tmp_path, *SMALL, "--closed", "2", "--time-limit", "2")
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


@pytest.mark.parametrize("flags", [["--shape", "w6", "--prefix-tokens", "9"], ["--answers", "long"]])
def test_flags_that_mean_nothing_for_a_shape_are_refused(flags: list[str]) -> None:
    with pytest.raises(CannotMeasure, match="means nothing for --shape"):
        serve.main(flags)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--closed", "0"], "at least 1"),
        (["--servers", "a"], "name=http"),
        (["--servers", "a=http://127.0.0.1:1", "a=http://127.0.0.1:2"], "one name twice"),
        (["--servers", "a=http://127.0.0.1:1", "--launch"], "leave out"),
        (["--plots", "/no/such/place"], "is no directory"),
    ],
)
def test_a_wrong_command_line_is_refused(flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serve.parse(flags)
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--launch", "--url", "http://127.0.0.1:1"], ["--serve-flags=--no-overlap"]])
def test_flags_that_contradict_each_other_are_refused(flags: list[str]) -> None:
    with pytest.raises(CannotMeasure, match="--launch"):
        serve.main(flags)


def test_servers_take_turns_with_the_same_words_and_are_set_against_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = FakeOpenAI(), FakeOpenAI(reports_cached=False, has_flush=False)
    began: list[str] = []
    first.on_prompt = lambda: began.append("first")
    second.on_prompt = lambda: began.append("second")
    path = tmp_path / "result.json"
    with running(first) as one, running(second) as other:
        flags = [*SMALL, "--closed", "1", "--repeats", "2", "--json", str(path)]
        assert serve.main(["--servers", f"a={one}", f"b={other}", *flags]) == 0
    assert began == ["first"] * 12 + ["second"] * 24 + ["first"] * 12
    assert first.prompts == second.prompts
    figures = json.loads(path.read_text())["figures"]
    assert figures["a_w9_requests_ok_count"] == figures["b_w9_requests_ok_count"] == 24
    ratio = figures["b_w9_output_tokens_per_s"] / figures["a_w9_output_tokens_per_s"]
    assert figures["b_over_a_w9_output_tokens_per_s_ratio"] == pytest.approx(ratio)
    assert "b_w9_cached_share_percent" not in figures
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("cached_share_percent")]
    assert line.split()[-2:] == ["not", "told"]


@pytest.mark.parametrize("route", ["", "/generate"])
@pytest.mark.parametrize("shape", ["w2", "w4", "w5", "w6", "w10", "w14", "w15"])
def test_token_ids_are_sent_with_the_ids_of_the_answers_and_reuse_is_exact(
    tmp_path: Path, tokenizer: Path, shape: str, route: str
) -> None:
    fake = FakeOpenAI(names_models=False)
    path = tmp_path / "result.json"
    with running(fake) as url:
        flags = ["--tokenizer", str(tokenizer), "--shape", shape, "--requests", "30", "--json", str(path)]
        assert serve.main(["--url", url + route, *flags, "--scale", "1/24", "--closed", "1"]) == 0
    assert set(fake.routes) == {route or "/v1/completions"}
    assert all(word.isdecimal() for prompt in fake.prompts for word in prompt.split())
    figures = {name.partition("_")[2]: value for name, value in json.loads(path.read_text())["figures"].items()}
    if shape in ("w2", "w5", "w10"):
        assert any("9001 9002" in prompt for prompt in fake.prompts)
    if shape != "w15":
        reuse = {name: value for name, value in figures.items() if name.endswith("shareable_hit_percent")}
        assert list(reuse.values()) == [100.0]
    assert fake.most_open >= {"w4": 3, "w5": 6}.get(shape, 1)


def test_answers_whose_token_ids_are_not_told_are_tokenised(tmp_path: Path, tokenizer: Path) -> None:
    fake = FakeOpenAI(tells_token_ids=False)
    flags = ["--tokenizer", str(tokenizer), "--shape", "w10", "--groups", "2", "--scale", "1/64"]
    status, figures = _figures(fake, tmp_path, *flags, "--open-turns", "1000")
    assert status == 0
    assert figures["w10_requests_ok_count"] == 10
    ids = [prompt.split() for prompt in fake.prompts]
    assert max(map(len, ids)) > 4 * min(map(len, ids))


def test_a_verdict_is_sent_with_all_judgements_and_not_when_one_is_missing(tmp_path: Path) -> None:
    fake = FakeOpenAI()
    flags = ["--shape", "w5", "--groups", "1", "--scale", "1/64"]
    assert _figures(fake, tmp_path, *flags)[0] == 0
    *aspects, verdict = fake.prompts
    assert len(aspects) == 6
    assert [verdict.count(f"Aspect {number}") for number in range(1, 7)] == [1] * 6
    assert verdict.count("answer1") == 6
    broken = FakeOpenAI(trouble={3: "break"})
    assert _figures(broken, tmp_path, *flags)[0] == 1
    assert len(broken.prompts) == 6


def test_random_turns_keep_to_the_most_at_a_time(tmp_path: Path) -> None:
    fake = FakeOpenAI()
    flags = ["--shape", "w10", "--groups", "9", "--turns", "2", "--scale", "1/16", "--open-turns", "10000"]
    status, figures = _figures(fake, tmp_path, *flags, "--most", "3")
    assert status == 0
    assert figures["w10_requests_ok_count"] == 18
    assert fake.most_open == 3


def test_a_trace_is_sent_at_its_recorded_times_and_its_blocks_are_shared(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"timestamp": at, "input_length": 1536, "output_length": 8, "hash_ids": [1, 2, 3 + at]} for at in range(4)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    fake = FakeOpenAI()
    status, figures = _figures(fake, tmp_path, "--shape", "w12", "--trace", str(trace), "--requests", "3")
    assert status == 0
    assert figures["w12_requests_ok_count"] == 3
    assert figures["w12_shareable_share_percent"] == pytest.approx(100 * 2 * 128 / (3 * 192), rel=0.05)
    assert len({" ".join(prompt.split()[:128]) for prompt in fake.prompts}) == 1


def test_a_warm_up_is_sent_first_and_not_counted(tmp_path: Path) -> None:
    fake = FakeOpenAI()
    flags = ["--shape", "w14", "--per-group", "5", "--scale", "1/64"]
    status, figures = _figures(fake, tmp_path, *flags)
    assert status == 0
    assert (figures["w14_requests_ok_count"], len(fake.prompts)) == (5, 6)
    assert len(fake.prompts[0].split()) == 16 + 1
    assert fake.most_open > 1


def test_hot_and_cold_prompts_have_latencies_of_their_own(tmp_path: Path) -> None:
    flags = ["--shape", "w13", "--per-group", "20", "--cold-percent", "20", "--scale", "1/64"]
    status, figures = _figures(FakeOpenAI(), tmp_path, *flags)
    assert status == 0
    assert min(figures["w13_ttft_hot_p99_ms"], figures["w13_ttft_cold_p99_ms"]) > 0


def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    with running(FakeOpenAI()) as url, pytest.raises(CannotMeasure, match="--tokenizer"):
        serve.main(["--url", url, "--tokenizer", str(tmp_path)])


def test_plots_are_drawn_for_every_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    with running(FakeOpenAI()) as one, running(FakeOpenAI(reports_cached=False)) as other:
        flags = [*SMALL, "--requests", "4", "--repeats", "2", "--plots", str(tmp_path)]
        assert serve.main(["--servers", f"a={one}", f"b={other}", *flags]) == 0
    assert (tmp_path / "w9.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path / "w9.png") in capsys.readouterr().out


@pytest.mark.parametrize("route", ["", "/generate"])
@pytest.mark.parametrize(("answer", "valid_percent"), [('{"name": "a"}', 100.0), ("no json", 0.0)])
def test_json_is_asked_for_by_its_form_and_checked(
    tmp_path: Path, tokenizer: Path, route: str, answer: str, valid_percent: float
) -> None:
    fake = FakeOpenAI(json_answer=answer)
    path = tmp_path / "result.json"
    with running(fake) as url:
        flags = ["--shape", "w7", "--groups", "3", "--tokenizer", str(tokenizer), "--json", str(path)]
        assert serve.main(["--url", url + route, *flags]) == 0
    assert json.loads(path.read_text())["figures"]["w7_short_valid_json_percent"] == valid_percent
    assert len(fake.forms) == 3
    for form, ignores_end in fake.forms:
        assert "blood status" in json.dumps(form)
        assert ignores_end is False


def test_what_axils_own_counters_say_of_a_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "FRESH_AFTER_S", 0)

    def text(evicted: int, retracted: int, steps: int, busy_s: float) -> str:
        values = dict(zip(counters.NAMES, (evicted, retracted, steps, busy_s), strict=True))
        return "".join(f'# TYPE {name} counter\n{name}{{model_name="m"}} {value}\n' for name, value in values.items())

    fake = FakeOpenAI(metrics=[text(5, 1, 100, 0.5), text(12, 3, 300, 0.9)])
    _, figures = _figures(fake, tmp_path, *SMALL, "--requests", "2")
    assert (figures["w9_evicted_pages_count"], figures["w9_retractions_count"]) == (7, 2)
    assert figures["w9_scheduler_per_step_us"] == pytest.approx(2000)
    _, others = _figures(FakeOpenAI(metrics=["# TYPE other counter\nother 1\n"]), tmp_path, *SMALL, "--requests", "2")
    assert not {name for name in others if "evicted" in name or "scheduler" in name}
