from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from model_runner.profiling import Profiling, WrongTime
from wire.messages.to_scheduler import ProfileWish


def _step() -> None:
    torch.ones(8, 8) @ torch.ones(8, 8)


def test_a_profile_holds_what_was_computed_while_it_ran(tmp_path: Path) -> None:
    profiling = Profiling(tmp_path / "new")
    profiling.start(ProfileWish(num_steps=10, record_shapes=True))
    _step()
    profiling.after_step()
    path = profiling.stop()
    assert path.parent == tmp_path / "new"
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert "aten::mm" in names


def test_a_profile_ends_by_itself_and_its_file_can_be_asked_for_once(tmp_path: Path) -> None:
    profiling = Profiling(tmp_path)
    profiling.start(ProfileWish(num_steps=1))
    _step()
    profiling.after_step()
    profiling.after_step()
    assert [profiling.stop()] == list(tmp_path.iterdir())
    with pytest.raises(WrongTime, match="/start_profile"):
        profiling.stop()


def test_there_is_one_profile_at_a_time(tmp_path: Path) -> None:
    profiling = Profiling(tmp_path)
    profiling.start(ProfileWish(num_steps=3))
    with pytest.raises(WrongTime, match="/stop_profile"):
        profiling.start(ProfileWish(num_steps=3))
    profiling.stop()
