"""The gap report's estimates beside exact counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import gap
from bench.command import CannotMeasure


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A file of Mooncake's form in which eight conversations take turns, and each grows by two blocks a turn."""
    rows = []
    for turn in range(60):
        session = turn * turn % 8
        length = 2 + turn // 8 * 2
        blocks = [0, *(1000 * (session + 1) + i for i in range(length))]
        rows.append({"timestamp": turn, "input_length": 512 * len(blocks), "output_length": 1, "hash_ids": blocks})
    (tmp_path / gap.MOONCAKE[0]).write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_where_every_page_is_followed_the_estimates_are_exact(traces: Path) -> None:
    given = gap.inputs.mooncake(traces / gap.MOONCAKE[0], speed=1, concurrency=None)
    exact = gap.Ceiling(given.prompts, block_tokens=512) if given.prompts else None
    assert exact is not None
    for pool_tokens in (512 * 24, 512 * 60):
        columns = gap.compared(given, exact, gap.hashed(given), pool_tokens=pool_tokens, sampled_pages=[10_000])
        estimates = columns["10000 sampled"]
        for name, percent in columns["exact"].items():
            if name != "measured_percent":
                assert estimates[name] == pytest.approx(percent), name
        assert columns["exact"]["measured_percent"] == pytest.approx(columns["exact"]["lru_x1_percent"])


def test_all_tables_are_printed_and_a_directory_without_traces_is_refused(
    traces: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    gap.main(["--traces", str(traces), "--json", str(traces / "figures.json")])
    assert capsys.readouterr().out.count("ceiling_percent") == len(gap.MOONCAKE_POOLS)
    with pytest.raises(CannotMeasure, match="has none of"):
        gap.main(["--traces", str(tmp_path_factory.mktemp("empty"))])
