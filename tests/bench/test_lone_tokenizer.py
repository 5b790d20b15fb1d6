from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from bench import lone_tokenizer
from bench.command import CannotMeasure


def _spend(seconds: float) -> None:
    started_s = time.thread_time()
    while time.thread_time() - started_s < seconds:
        pass


def test_cpu_time_is_that_of_all_threads_and_does_not_count_waiting() -> None:
    before_s = lone_tokenizer.cpu_time_s(os.getpid())
    _spend(0.05)
    assert 0.05 <= lone_tokenizer.cpu_time_s(os.getpid()) - before_s < 5


def test_cpu_time_has_that_of_threads_which_ended() -> None:
    before_s = lone_tokenizer.cpu_time_s(os.getpid())
    thread = threading.Thread(target=_spend, args=(0.05,))
    thread.start()
    thread.join()
    assert 0.05 <= lone_tokenizer.cpu_time_s(os.getpid()) - before_s < 5


def test_a_child_is_found_by_the_module_that_it_runs() -> None:
    module = "http.server"
    with subprocess.Popen([sys.executable, "-u", "-m", module, "0"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline()
            assert lone_tokenizer.child_running(module) == child.pid
        finally:
            child.kill()
    with pytest.raises(CannotMeasure, match="no child"):
        lone_tokenizer.child_running(module)
