from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import compare, server
from bench.command import CannotMeasure
from tests.fakes import byte_tokenizer

HERE = Path(__file__).parent
RUNS = ["--run", "w15 --groups 3 --scale 1/64", "--run", "w5 --groups 1 --scale 1/64"]


@pytest.fixture
def flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "peer.sh").symlink_to(HERE / "fake_peer.sh")
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("PEERS", str(tmp_path))
    return ["--peers", str(tmp_path), "--tokenizer", str(tmp_path), "--json", str(tmp_path / "result.json")]


@pytest.mark.parametrize("together", [[], ["--together"]])
def test_peers_that_are_there_are_compared_and_the_others_are_named(
    flags: list[str], together: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["--names", "good", "absent", "forked", "nobody"]
    assert compare.main([*flags, *RUNS, *names, "--repeats", "2", *together]) == 1
    figures = json.loads(Path(flags[-1]).read_text())["figures"]
    for name in ("good", "forked"):
        assert figures[f"{name}_ready_s"] > 0
        assert 1 < figures[f"{name}_resident_mb"] < 1000
        assert figures[f"{name}_run1_w15_requests_ok_count"] == 6
        assert figures[f"{name}_run2_w5_requests_ok_count"] == 14
    assert figures["forked_over_good_run2_w5_ttft_p50_ms_ratio"] > 0
    printed = capsys.readouterr().out
    assert "1. w15 --groups 3 --scale 1/64" in printed
    assert "not found: absent: absent is not installed" in printed
    assert "not found: nobody:" in printed


def test_all_found_and_all_answered_is_success(flags: list[str]) -> None:
    assert compare.main([*flags, *RUNS[:2], "--names", "good"]) == 0


def test_axil_is_asked_by_its_own_route_under_each_of_its_names_with_the_flags_of_that_name(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = tmp_path / "axil"
    served.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/served\nfor PORT; do :; done\nexport PORT\nexec {HERE}/fake_peer.sh good\n'
    )
    served.chmod(0o755)
    monkeypatch.setattr(server, "_axil", lambda: str(served))
    names = ["--names", "axil", "axil-int8", "--also-axil", "axil-int8=--quantize int8"]
    assert compare.main([*flags, *RUNS[:2], *names]) == 0
    assert [line.split(" --host")[0] for line in (tmp_path / "served").read_text().splitlines()] == [
        "serve",
        "serve --quantize int8",
    ]
    figures = json.loads(Path(flags[-1]).read_text())["figures"]
    assert figures["axil-int8_over_axil_run1_w15_output_tokens_per_s_ratio"] > 0


def test_no_server_at_all_leaves_no_figures(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main([*flags, *RUNS, "--names", "nobody", "--together"]) == 1
    assert "not found: nobody" in capsys.readouterr().out
    assert json.loads(Path(flags[-1]).read_text())["figures"] == {}


@pytest.mark.parametrize("run", compare.RUNS)
def test_every_run_that_is_there_by_default_can_be_made(flags: list[str], run: str) -> None:
    asked = compare.load_from(run, compare.parse(flags), seed=1)
    assert asked.workload(seed=1).num_requests > 0


def test_a_load_does_not_find_the_prompts_of_the_one_before_it_in_the_cache(flags: list[str]) -> None:
    run = "w15 --groups 3 --scale 1/64"
    assert compare.main([*flags, "--run", run, "--run", f"{run} --groups 6", "--names", "good"]) == 0
    figures = json.loads(Path(flags[-1]).read_text())["figures"]
    assert figures["good_run2_w15_cached_share_percent"] < 5


def test_a_wrong_run_is_refused_before_anything_is_started(flags: list[str]) -> None:
    with pytest.raises(CannotMeasure, match="--zipf means nothing for --shape w5"):
        compare.main([*flags, "--run", "w5 --zipf 2"])
    with pytest.raises(SystemExit):
        compare.main([*flags, "--run", "w99"])
    for wrong in (
        ["--names", "a", "a"],
        ["--also-axil", "--quantize int8"],
        ["--also-axil", "axil="],
        ["--also-axil", "b="],
    ):
        with pytest.raises(SystemExit):
            compare.parse([*flags, *wrong])
