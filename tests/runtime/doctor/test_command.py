from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from runtime.cli import build_parser, run
from runtime.doctor.flags import run_doctor
from tests.fakes import BOS, END_OF_TURN, text_ids, write_model_dir
from tests.runtime.doctor.chats import NAMES, SYSTEM, tool


def _body(i: int, *, system: str = SYSTEM, names: tuple[str, ...] = NAMES) -> dict[str, object]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Mend the parser."}]
    return {"messages": messages, "tools": [tool(name) for name in names]}


def _write(path: Path, value: object) -> str:
    path.write_text(json.dumps(value))
    return str(path)


def test_two_bodies_that_part_end_with_1_and_show_the_fork(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = _write(tmp_path / "a.json", _body(0, system=f"Now: 18:00:31\n{SYSTEM}"))
    other = _write(tmp_path / "b.json", _body(0, system=f"Now: 18:01:05\n{SYSTEM}", names=NAMES[::-1]))
    assert run(["doctor", one, other], version="0") == 1
    shown = capsys.readouterr().out
    assert f"{one} and {other} part in system, at about token 1 " in shown
    for words in ('behind  "Now: "', '"18:00:31"', '"18:01:05"', "the same tools in another order", "remedy"):
        assert words in shown


def test_two_bodies_that_begin_alike_end_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = _write(tmp_path / "a.json", _body(0)), _write(tmp_path / "b.json", _body(1))
    assert run(["doctor", one, other], version="0") == 0
    assert "begins as" in capsys.readouterr().out


def test_two_bodies_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = _write(tmp_path / "a.json", _body(0))
    other = _write(tmp_path / "b.json", _body(0, names=NAMES[::-1]))
    assert run(["doctor", one, other, "--json"], version="0") == 1
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert (change["place"], change["kind"]) == ("tools", "tool_order")


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_log_with_a_time_in_each_prompt_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_wrapped: bool
) -> None:
    log = tmp_path / "log.jsonl"
    bodies = [_body(i, system=f"Now: 18:0{i}:31\n{SYSTEM}") for i in range(5)]
    rows = [{"time": 100.0 + i, "body": body} if is_wrapped else body for i, body in enumerate(bodies)]
    log.write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert run(["doctor", str(log), "--token-seconds", "0.001"], version="0") == 1
    shown = capsys.readouterr().out
    assert "a time, new in 4 of 4 turns" in shown
    assert ("a day" in shown) is is_wrapped


def test_a_healthy_log_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(json.dumps(_body(i)) for i in range(5)))
    assert run(["doctor", str(log)], version="0") == 0
    assert "1 kind, 0 with findings" in capsys.readouterr().out


def test_two_prompts_with_another_time_are_too_few_and_the_doctor_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(json.dumps(_body(i, system=f"Now: 18:0{i}:31\n{SYSTEM}")) for i in range(2)))
    assert run(["doctor", str(log)], version="0") == 0
    assert "too few to tell: what changes is found in 3 prompts" in capsys.readouterr().out


def test_a_reader_of_findings_that_leaves_is_no_error_of_the_doctor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Left(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(_body(0)))
    monkeypatch.setattr("sys.stdout", Left())
    with pytest.raises(BrokenPipeError):
        run_doctor(build_parser("0").parse_args(["doctor", str(log)]))
    assert not capsys.readouterr().err


def test_recorded_token_ids_are_read_with_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model_dir(tmp_path / "model")
    log = tmp_path / "log.jsonl"
    with log.open("w") as rows:
        for i in range(5):
            ids = [BOS, *text_ids(f"system\nNow: 18:0{i}:31\n{SYSTEM}"), END_OF_TURN, *text_ids("user\nMend it.")]
            row = {"timestamp": 1000.0 * i, "input_length": len(ids), "output_length": 1, "hash_ids": []}
            rows.write(json.dumps({**row, "prompt_ids": ids}) + "\n")
    assert run(["doctor", str(log), "--model", str(model)], version="0") == 1
    shown = capsys.readouterr().out
    assert "system, from token 5 on: a time, new in 4 of 4 turns" in shown


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "log.jsonl:1 is no JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "no request with a prompt"),
        ("", "empty"),
        ('{"hash_ids": []}', "without prompt_ids"),
    ],
)
def test_a_log_that_is_none_ends_with_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, words: str
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(content)
    assert run(["doctor", str(log)], version="0") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        (("http://127.0.0.1:9",), "Is it running?"),
        (("--url", "http://127.0.0.1:9/v1"), "can't reach http://127.0.0.1:9: connection refused. Is it"),
        (("--url", "http://127.0.0.1:9", "log.jsonl"), "got http://127.0.0.1:9 and log.jsonl"),
        (("/no/such",), "there is no file /no/such"),
        (("localhost:9",), "an address begins with http://"),
        (("a", "b", "c"), "got 3 names"),
    ],
)
def test_what_can_not_be_asked_ends_with_2(
    capsys: pytest.CaptureFixture[str], sources: tuple[str, ...], words: str
) -> None:
    assert run(["doctor", *sources], version="0") == 2
    assert words in capsys.readouterr().err
