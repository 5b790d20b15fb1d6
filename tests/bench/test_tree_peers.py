from __future__ import annotations

import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

from bench import peer_trees, tree_peers

OURS = {"bookkeeping_agent_us": 10.0, "match_64k_chain_ms": 2.0}


def interpreter(folder: Path, script: str) -> Path:
    """A stand-in for an interpreter: it runs `script`, whatever it is asked to run."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(script)}")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _few_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_peers, "_inputs", dict)


def test_a_figure_that_takes_too_long_is_shown_as_such_and_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = interpreter(
        tmp_path,
        """
        print("a line of a library")
        print('["bookkeeping_agent_us", 25.0]')
        print('["evict_one_of_100k_us", null]')
        print('["match_64k_chain_ms", 6.0]')
        """,
    )
    ratios = tree_peers.print_peers([python], OURS, names=["sglang rust"], limit_s=7)
    assert ratios == {
        "sglang_rust_bookkeeping_agent_us_ratio": 2.5,
        "sglang_rust_match_64k_chain_ms_ratio": 3.0,
    }
    assert ">7 s" in capsys.readouterr().out


def test_what_a_peer_gave_before_it_failed_is_kept_and_the_reason_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = interpreter(
        tmp_path,
        """
        print('["bookkeeping_agent_us", 25.0]', flush=True)
        raise RuntimeError("no such tree")
        """,
    )
    ratios = tree_peers.print_peers([python], OURS, names=["vllm"], limit_s=7)
    assert ratios == {"vllm_bookkeeping_agent_us_ratio": 2.5}
    assert "not all run by" in (out := capsys.readouterr().out)
    assert "no such tree" in out


def test_the_next_interpreter_is_asked_where_one_has_no_such_peer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "with").mkdir()
    python = interpreter(tmp_path / "with", """print('["bookkeeping_agent_us", 25.0]')""")
    without = interpreter(tmp_path, """raise ModuleNotFoundError("no vllm")""")
    ratios = tree_peers.print_peers([tmp_path / "absent", without, python], OURS, names=["vllm"], limit_s=7)
    assert ratios == {"vllm_bookkeeping_agent_us_ratio": 2.5}
    assert "no vllm" in capsys.readouterr().out


def test_an_operation_is_stopped_at_its_limit_and_the_next_goes_on() -> None:
    def endless() -> float:
        while True:
            with suppress(Exception):
                time.sleep(3600)

    assert peer_trees.within(0.05, endless) is None
    assert peer_trees.within(3600, lambda: 1.5) == 1.5
