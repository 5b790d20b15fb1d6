"""Recordings that no server has written are refused with the line that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from wire.recording import read_recording

ROW = '"timestamp": 1, "output_length": 1, "hash_ids": []'


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ('"input_length": 3, "row": 0, "follows": 0, "shared_tokens": 3', "earlier row"),
        ('"input_length": 3, "row": 0, "follows": 1, "shared_tokens": 3', "earlier row"),
        ('"input_length": 3, "follows": 0', "earlier row"),
        ('"input_length": 3, "row": 1, "follows": 0, "shared_tokens": 9', "must not exceed"),
        ('"input_length": -5', ">= 0"),
        ('"input_length": 3, "shared_tokens": -7', ">= 0"),
        ('"input_length": 1, "prompt_ids": [9999999999999]', "prompt_ids"),
        ('"input_length": 1, "prompt_ids": [-1]', "prompt_ids"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, fields: str, why: str) -> None:
    path = tmp_path / "recording"
    path.write_text(f'{{{ROW}, "input_length": 3}}\n{{{ROW}, {fields}}}\n')
    with pytest.raises(ValueError, match=rf"line 2: .*{why}"):
        read_recording(path)


def test_rows_of_mooncakes_traces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 0, "hash_ids": [0, 1]}\n')
    (row,) = read_recording(path)
    assert (row.input_length, row.hash_ids, row.row) == (600, (0, 1), None)
