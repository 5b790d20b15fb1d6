import io
import sys

import pytest

from runtime.display import Display
from runtime.launch import progress_text
from runtime.part import Said
from wire.child import Progress, Started


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def said(done: int, total: int) -> Said:
    return Said(part="model runner", status=Progress(what="weights", done=done, total=total, unit="B"))


def test_on_a_terminal_loading_is_a_bar_with_the_parts_lines_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    display = Display()
    display.said(said(0, 2_000_000))
    display.said(said(1_000_000, 2_000_000))
    display.line("a line of the runner")
    display.said(Said(part="model runner", status=Started()))
    shown = terminal.getvalue()
    assert "weights:  50%" in shown
    assert "1.00M/2.00M" in shown
    assert "a line of the runner\n" in shown
    assert shown.endswith("\n")


def test_elsewhere_loading_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("runtime.display._LOG_EVERY_S", 0.0)
    with caplog.at_level("INFO"):
        Display().said(said(1_500_000, 2_000_000))
    assert caplog.messages == ["model runner: weights 1 of 2 MB (75%)"]


def test_progress_without_a_number_is_the_sentence_alone() -> None:
    assert progress_text(Progress(what="compiling")) == "compiling"
    assert progress_text(Progress(what="layers", done=1, total=4)) == "layers 1 of 4 (25%)"


def test_when_nobody_reads_the_output_the_parts_can_still_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Closed())
    Display().line("a line")
