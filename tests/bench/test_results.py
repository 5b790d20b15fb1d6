from __future__ import annotations

import argparse
import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from bench import results


def test_a_result_file_says_what_was_measured_where_when_and_how(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    results.write(path, {"ttft_p50_ms": 12.5, "requests_ok_count": 3}, "python -m bench.serve")
    record = json.loads(path.read_text())
    assert list(record) == ["machine", "commit", "date", "command", "figures"]
    assert record["figures"] == {"ttft_p50_ms": 12.5, "requests_ok_count": 3}
    assert record["command"] == "python -m bench.serve"
    assert datetime.fromisoformat(record["date"]).tzinfo is not None
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", record["commit"])
    assert "cores" in record["machine"]
    assert "GiB" in record["machine"]


@pytest.mark.parametrize(("name", "value"), [("ttft", 1.0), ("ttft_ms", float("nan")), ("ttft_ms", float("inf"))])
def test_a_figure_without_unit_or_without_finite_value_is_refused(tmp_path: Path, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        results.write(tmp_path / "result.json", {name: value}, "command")
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    results.add_json_flag(parser)
    assert parser.parse_args([]).json is None
    assert parser.parse_args(["--json", str(tmp_path / "a.json")]).json == tmp_path / "a.json"
    with pytest.raises(SystemExit):
        parser.parse_args(["--json", str(tmp_path / "missing" / "a.json")])
    assert "missing is no directory" in capsys.readouterr().err
