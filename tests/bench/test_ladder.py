from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.command import CannotMeasure
from bench.ladder import decode_rate, resident_mb


def test_tokens_count_between_the_last_beginning_and_the_first_end() -> None:
    early, late = [0.0, 1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0, 6.0]
    assert decode_rate([early], [5]) == pytest.approx(1.0)
    assert decode_rate([early, late], [5, 5]) == pytest.approx(2.0)
    # Pieces of two tokens each.
    assert decode_rate([early], [10]) == pytest.approx(2.0)


def test_rows_that_never_decode_together_are_not_measured() -> None:
    with pytest.raises(CannotMeasure, match="--output-tokens"):
        decode_rate([[0.0, 1.0], [2.0, 3.0]], [2, 2])


def test_the_runners_memory_is_found_among_all_processes(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasure):
        resident_mb(tmp_path)
    for number, command in enumerate(("model_runner.process", "scheduler.process")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_bytes(b"python\0-m\0" + command.encode() + b"\0")
        (tmp_path / str(number) / "statm").write_text("9000 1000 1 1 0 1 0")
    assert resident_mb(tmp_path) == 1000 * os.sysconf("SC_PAGE_SIZE") / 1e6
