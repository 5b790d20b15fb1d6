from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import bench

COMMANDS = sorted(
    path.stem
    for path in Path(bench.__file__).parent.glob("*.py")
    if "\nimport argparse" in path.read_text() and "def main(" in path.read_text()
)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_measurement_tells_how_it_is_used(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main = importlib.import_module(f"bench.{name}").main
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")
