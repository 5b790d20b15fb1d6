from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.cli import run
from tests.fakes import CHAT_TEMPLATE, write_model_dir

FEW = ("--random-chats", "5")


def test_a_template_that_holds_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model_dir(tmp_path / "plain")
    assert run(["lint-template", str(model), *FEW], version="0") == 0
    assert capsys.readouterr().out.startswith("plain: ")


def test_a_counter_example_ends_with_1_and_with_0_where_it_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model_dir(tmp_path / "model")
    template = tmp_path / "dated.jinja"
    template.write_text("{{ strftime_now('%H:%M:%S') }}" + CHAT_TEMPLATE)
    command = ["lint-template", str(model), "--chat-template", str(template), *FEW, "--json"]
    assert run(command, version="0") == 1
    body = json.loads(capsys.readouterr().out)
    assert [(finding["cause"], finding["every"]) for finding in body["findings"]] == [("time", "second")]
    assert run([*command, "--allow", "clock"], version="0") == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("/no/such/model",), "/no/such/model"),
        (("--allow", "klock"), "klock"),
        (("--random-chats", "-1"), "--random-chats must be 0 or more, got -1"),
        (("--chat-template", "/no/such.jinja"), "/no/such.jinja"),
    ],
)
def test_what_can_not_run_ends_with_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    model = () if arguments[0].startswith("/") else (str(write_model_dir(tmp_path / "model")),)
    assert run(["lint-template", *model, *arguments], version="0") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("axil: error: ")
    assert words in line


def test_a_template_that_takes_no_chat_could_not_be_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model_dir(tmp_path / "model", chat_template="{{ raise_exception('not me') }}")
    assert run(["lint-template", str(model), *FEW], version="0") == 2
    assert "not me" in capsys.readouterr().err


def test_a_model_without_a_template_is_told_how_to_name_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model_dir(tmp_path / "model", chat_template=None)
    assert run(["lint-template", str(model), *FEW], version="0") == 2
    assert "--chat-template" in capsys.readouterr().err
