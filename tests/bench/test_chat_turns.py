from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import chat_turns


def test_a_late_turn_is_far_cheaper_than_tokenising_the_whole_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chat_turns, "TURNS", 6)
    path = tmp_path / "figures.json"
    assert chat_turns.main(["--repeats", "3", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())["figures"]
    assert 0 < figures["new_tokens"] < figures["last_turn_tokens"] / 5
    assert 0 < figures["last_turns_ms"] < figures["library_whole_ms"]
    assert figures["process_cpu_ms"] > 0
    assert "chat 1" in capsys.readouterr().out
