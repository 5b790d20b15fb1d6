from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import token_cost


@pytest.mark.e2e
def test_the_cost_of_a_streamed_token_is_told(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    flags = ["--streams", "4", "--steps", "30", "--pace", "4", "--repeats", "2", "--json", str(path)]
    assert token_cost.main(flags) == 0
    figures = json.loads(path.read_text())["figures"]
    assert 1 < figures["cpu_per_token_us"] < 100_000
    assert 0 < figures["pieces_per_token_ratio"] <= 1
