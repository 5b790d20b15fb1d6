from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import open_streams
from tests.e2e.tiny_model import write_tiny_model


@pytest.mark.e2e
def test_memory_and_health_are_told_for_each_stage(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", context_tokens=4096)
    path = tmp_path / "result.json"
    flags = ["--silent", "20", "--slow", "2", "--seconds", "1", "--json", str(path)]
    assert open_streams.main([*flags, f"--serve-flags={model} --dtype float32 --threads 1"]) == 0
    figures = json.loads(path.read_text())["figures"]
    assert figures["alone_open_count"] == 0
    assert figures["slow_readers_open_count"] == 2
    assert figures["and_silent_streams_open_count"] > 18
    for part in open_streams.PARTS:
        assert figures[f"and_silent_streams_{part}_resident_mb"] > 10
    assert figures["alone_health_p50_ms"] > 0
    assert figures["slow_readers_metrics_ms"] > 0
