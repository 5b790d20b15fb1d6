from pathlib import Path

import pytest

from runtime.cli import build_parser
from runtime.config_file import read_config_file


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "axil.yaml"
    path.write_text(text)
    return str(path)


def test_a_key_is_a_flag_however_its_dashes_are_written(tmp_path: Path) -> None:
    text = "model: m.gguf\nmax-running: 8\nmem_fraction: 1\n--port: 0\noverlap: false\nthreads: null\nAPI_KEY: '123'\n"
    assert read_config_file(written(tmp_path, text)) == {
        "model": "m.gguf",
        "max_running": 8,
        "mem_fraction": 1.0,
        "port": 0,
        "overlap": False,
        "threads": None,
        "api_key": "123",
    }


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert read_config_file(written(tmp_path, "# nothing\n")) == {}


def test_flags_on_the_command_line_win_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    values = read_config_file(written(tmp_path, "model: from-file\nport: 1\noverlap: false\nmax-running: 7\n"))
    parser = build_parser("0", values)
    args = parser.parse_args(["serve", "--port", "2", "--overlap"])
    assert (args.model, args.port, args.overlap, args.max_running) == ("from-file", 2, True, 7)
    assert args.max_queued_requests == 4096
    assert parser.parse_args(["serve", "given"]).model == "given"
    assert parser.parse_args(["serve"]).overlap is False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port: 1\nmax-runing: 3", ("line 2", "'max-runing'", "did you mean max-running")),
        ("http:\n  port: 3", ("line 1", "'http'")),
        ("port: many", ("line 1", "--port", "whole number", "'many'")),
        ("port: true", ("--port", "whole number")),
        ("port: null", ("--port",)),
        ("api-key: 123", ("--api-key", "text", "123")),
        ("dtype: int4", ("--dtype", "bfloat16", "int4")),
        ("overlap: 1", ("--overlap", "true or false")),
        ("model: 7", ("model", "text")),
        ("config: other.yaml", ("'config'",)),
        ("port: 1\n--port: 2", ("line 2", "twice")),
        ("- port", ("flag: value",)),
        ("port: [1", ("no valid YAML",)),
        ("port: !!python/object:os.system 1", ("line 1",)),
    ],
)
def test_what_is_wrong_is_one_line_that_says_where(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        read_config_file(written(tmp_path, text))
    message = str(caught.value)
    assert "\n" not in message
    for word in ("axil.yaml", *words):
        assert word in message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"/no/such\.yaml can't be read"):
        read_config_file("/no/such.yaml")
