import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

import runtime.engine_commands
from runtime.cli import run
from runtime.completion import Chunk
from wire.errors import Broken
from wire.sampling import SamplingParams


class FakeEngine:
    """Answers every prompt with itself, and notes how it was made."""

    made: list["FakeEngine"] = []  # noqa: RUF012  (a record for the tests)
    error: Exception | None = None

    def __init__(self, model: str | None, **settings: Any) -> None:  # noqa: ANN401
        self.model, self.settings, self.is_closed = model, settings, False
        self.asked: list[tuple[str, SamplingParams]] = []
        self.made.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.is_closed = True

    async def stream(self, prompt: str, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        self.asked.append((prompt, sampling))
        if self.error is not None:
            raise self.error
        for word in ("so ", prompt):
            yield Chunk(text=word, token_ids=())


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeEngine]]:
    monkeypatch.setattr(runtime.engine_commands, "Engine", FakeEngine)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    monkeypatch.setattr(FakeEngine, "made", [])
    yield FakeEngine


def piped(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_one_word_is_the_prompt_for_the_embedded_model(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--temperature", "0", "--stop", "x", "--threads", "2")
    assert run(["generate", "Gravity is", *flags], version="0") == 0
    assert capsys.readouterr().out == "so Gravity is\n"
    (engine,) = FakeEngine.made
    assert engine.model is None
    assert engine.settings["threads"] == 2
    ((prompt, sampling),) = engine.asked
    assert (prompt, sampling.temperature, sampling.stop, sampling.max_new_tokens) == ("Gravity is", 0.0, ("x",), 128)
    assert engine.is_closed


def test_two_words_are_model_and_prompt() -> None:
    assert run(["generate", "some.gguf", "Gravity is"], version="0") == 0
    assert FakeEngine.made[0].model == "some.gguf"


def test_without_a_prompt_standard_input_is_continued(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(monkeypatch, "Gravity\nis\n")
    assert run(["generate"], version="0") == 0
    assert capsys.readouterr().out == "so Gravity\nis\n"
    (tmp_path / "config.json").write_text("{}")
    for model in ("some.gguf", str(tmp_path)):
        piped(monkeypatch, "Light is")
        assert run(["generate", model], version="0") == 0
        assert FakeEngine.made[-1].model == model
        assert FakeEngine.made[-1].asked[0][0] == "Light is"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a", "b", "c"), "3 words"),
        (("",), "the prompt is empty"),
        (("a", "--api-key", "k"), "give its --url too"),
        (("some.gguf", "a", "--url", "http://127.0.0.1:9"), "leave some.gguf out"),
        (("a", "--url", "http://127.0.0.1:9", "--threads", "2"), "--threads can't be set"),
        (("a", "--temperature", "-1"), "temperature"),
        (("a", "--top-p", "7"), "top_p"),
    ],
)
def test_what_does_not_suit_is_a_usage_error(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", *arguments], version="0") == 2
    assert words in capsys.readouterr().err
    assert FakeEngine.made == []


def test_an_empty_standard_input_is_told_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(monkeypatch, "\n")
    assert run(["generate"], version="0") == 2
    assert "the prompt is empty" in capsys.readouterr().err
    assert FakeEngine.made == []


def test_an_answer_that_breaks_is_one_line_and_status_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeEngine, "error", Broken("the model runner process died"))
    assert run(["generate", "Gravity is"], version="0") == 1
    assert capsys.readouterr().err == "axil: error: the model runner process died\n"
    assert FakeEngine.made[0].is_closed
