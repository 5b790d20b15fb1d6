from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import token_cost
from bench.command import CannotMeasure


@pytest.mark.e2e
def test_the_cost_of_a_streamed_token_is_told(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    flags = ["--streams", "4", "--steps", "30", "--pace", "4", "--repeats", "2", "--json", str(path)]
    assert token_cost.main(flags) == 0
    figures = json.loads(path.read_text())["figures"]
    assert 1 < figures["cpu_per_token_us"] < 100_000
    assert 0 < figures["pieces_per_token_ratio"] <= 1


def test_cpu_time_is_that_of_all_threads_and_does_not_count_waiting() -> None:
    before_s, started_s = token_cost.cpu_time_s(os.getpid()), time.thread_time()
    while time.thread_time() - started_s < 0.05:
        pass
    assert 0.05 <= token_cost.cpu_time_s(os.getpid()) - before_s < 5


def test_a_child_is_found_by_the_module_that_it_runs() -> None:
    module = "http.server"
    with subprocess.Popen([sys.executable, "-u", "-m", module, "0"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline()
            assert token_cost.child_running(module) == child.pid
        finally:
            child.kill()
    with pytest.raises(CannotMeasure, match="no child"):
        token_cost.child_running(module)
