from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import edge


@pytest.mark.e2e
def test_what_the_edge_adds_is_told_for_each_way_to_ask(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert edge.main(["--repeats", "5", "--tokens", "300", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())["figures"]
    for kind in ("ids", "text", "new_text", "chat"):
        assert 0 < figures[f"edge_{kind}_least_ms"] <= figures[f"edge_{kind}_p10_ms"] <= figures[f"edge_{kind}_p50_ms"]
        assert 0 < figures[f"edge_{kind}_tokenizer_cpu_p50_ms"] < 1000
        assert 250 < figures[f"edge_{kind}_prompt_tokens"] < 400
