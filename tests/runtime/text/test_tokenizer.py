from __future__ import annotations

import threading
from pathlib import Path

import pytest

from runtime.text.tokenizer import Tokenizer
from tests.fakes import BOS, END_OF_TURN, EOS, byte_tokenizer, write_model_dir


def test_the_ids_that_end_an_answer_come_from_all_three_files(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_model_dir(tmp_path))
    assert set(tokenizer.eos_token_ids) == {EOS, END_OF_TURN}
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "config.json").unlink()
    assert Tokenizer.load(tmp_path).eos_token_ids == (EOS,)


def test_special_tokens_have_their_names_and_ids(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_model_dir(tmp_path))
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.special_ids == {BOS, EOS, END_OF_TURN}


def test_truncation_and_padding_in_the_file_are_undone(tmp_path: Path) -> None:
    backend = byte_tokenizer()
    backend.enable_truncation(4)
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).encode("abcdefgh", add_special_tokens=True) == list(b"abcdefgh")


def test_tokens_are_shown_as_bytes_and_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_model_dir(tmp_path))
    assert tokenizer.token_bytes(0xC3) == b"\xc3"
    assert tokenizer.token_text(0xC3) == "\ufffd"
    assert tokenizer.token_text(EOS) == "</s>"
    assert tokenizer.token_text(100_000) == ""


def test_other_threads_run_while_a_long_prompt_is_tokenised(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_model_dir(tmp_path))
    begun, ended = threading.Event(), threading.Event()

    def encode() -> None:
        begun.set()
        tokenizer.encode("many words " * 60_000, add_special_tokens=True)
        ended.set()

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    is_alone = not ended.is_set()
    thread.join()
    assert is_alone, "this thread could not run before the other had ended"


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("tokenizer.json", None, FileNotFoundError),
        ("tokenizer.json", "{}", ValueError),
        ("config.json", "{", ValueError),
        ("config.json", "[]", ValueError),
    ],
)
def test_a_file_that_is_missing_or_wrong_is_named(
    tmp_path: Path, name: str, content: str | None, error: type[Exception]
) -> None:
    write_model_dir(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(error, match=name):
        Tokenizer.load(tmp_path)
