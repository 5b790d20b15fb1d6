from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from bench import processes
from bench.command import CannotMeasure

MODULE = "http.server"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A child of this process that runs a module."""
    with subprocess.Popen([sys.executable, "-u", "-m", MODULE, "0"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        try:
            yield child
        finally:
            child.kill()


def test_a_child_is_found_by_the_module_that_it_runs(child: subprocess.Popen[bytes]) -> None:
    assert processes.child_running(MODULE) == child.pid


def test_the_memory_of_a_child_s_child_counts_though_it_is_no_child() -> None:
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-u', '-m', '{MODULE}', '0'])"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline()
            assert processes.resident_mb(MODULE) > 1
            with pytest.raises(CannotMeasure):
                processes.child_running(MODULE)
        finally:
            for descendant in psutil.Process(child.pid).children():
                descendant.kill()


def test_its_memory_is_told_in_megabytes(child: subprocess.Popen[bytes]) -> None:
    assert 1 < processes.resident_mb(MODULE) < 1000


def test_the_memory_of_a_family_is_more_than_that_of_its_first_and_less_than_all_resident(
    child: subprocess.Popen[bytes],
) -> None:
    alone_mb = processes.family_mb(child.pid)
    assert 1 < alone_mb < processes.family_mb(psutil.Process().pid)
    assert alone_mb <= processes.resident_mb(MODULE)


def test_a_process_that_has_ended_is_not_there(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    with pytest.raises(CannotMeasure, match=f"no process .* runs {MODULE}"):
        processes.child_running(MODULE)


def test_a_process_that_ends_while_it_is_looked_at_is_not_there(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = psutil.Process().children()
    child.kill()
    child.wait()
    monkeypatch.setattr(psutil.Process, "children", lambda process, recursive=False: seen)
    with pytest.raises(CannotMeasure):
        processes.resident_mb(MODULE)
