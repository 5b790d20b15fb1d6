from __future__ import annotations

import os
import threading
import time

from bench import lone_tokenizer


def _spend(seconds: float) -> None:
    started_s = time.thread_time()
    while time.thread_time() - started_s < seconds:
        pass


def test_cpu_time_is_that_of_all_threads_and_does_not_count_waiting() -> None:
    before_s = lone_tokenizer.cpu_time_s(os.getpid())
    _spend(0.05)
    assert 0.05 <= lone_tokenizer.cpu_time_s(os.getpid()) - before_s < 60


def test_cpu_time_has_that_of_threads_which_ended() -> None:
    before_s = lone_tokenizer.cpu_time_s(os.getpid())
    thread = threading.Thread(target=_spend, args=(0.05,))
    thread.start()
    thread.join()
    assert 0.05 <= lone_tokenizer.cpu_time_s(os.getpid()) - before_s < 60
