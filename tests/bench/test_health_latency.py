from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import health_latency
from tests.bench.fake_openai import FakeOpenAI, running


def test_health_is_probed_while_all_streams_and_long_prompts_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_latency, "FEWEST_PROBES", 5)
    fake = FakeOpenAI()
    path = tmp_path / "result.json"
    with running(fake) as url:
        flags = ["--streams", "4", "--long-prompt-tokens", "300", "--seconds", "2", "--json", str(path)]
        assert health_latency.main(["--url", url, *flags]) == 0
    figures = json.loads(path.read_text())["figures"]
    assert figures["health_max_ms"] >= figures["health_p99_ms"] >= figures["health_p50_ms"] > 0
    assert figures["unhealthy_count"] == 0
    assert fake.most_open == 5
    assert {len(prompt.split()) for prompt in fake.prompts} == {64, 300}


def test_a_failing_load_is_an_error_not_a_figure_of_an_idle_server(capsys: pytest.CaptureFixture[str]) -> None:
    with running(FakeOpenAI(trouble={9: "break"})) as url:
        assert health_latency.main(["--url", url, "--streams", "4", "--seconds", "60"]) == 1
    assert "1 x error in stream" in capsys.readouterr().err
