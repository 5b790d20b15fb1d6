from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from model_runner.kernels.library import Int, Library, Pointer
from tests.deadline import DEADLINE_S


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_pieces", [0, 1, 2, 1000, 3_000_000])
def test_every_piece_is_done_once_whatever_the_number_of_threads(
    library: Library, num_threads: int, num_pieces: int
) -> None:
    library.set_threads(num_threads)
    count_pieces = library.function("axil_count_pieces", Pointer, Int)
    counters = np.zeros(num_pieces, np.int32)
    num_rounds = 2000 if num_pieces <= 2 else 3
    for _ in range(num_rounds):
        count_pieces(counters.ctypes.data, num_pieces)
    assert (counters == num_rounds).all()
    library.set_threads(1)


def test_more_threads_than_cores_finish_small_calls_in_good_time(library: Library) -> None:
    library.set_threads(8 * (os.cpu_count() or 1))
    count_pieces = library.function("axil_count_pieces", Pointer, Int)
    counters = np.zeros(64, np.int32)
    started = time.monotonic()
    for _ in range(1000):
        count_pieces(counters.ctypes.data, 64)
    assert (counters == 1000).all()
    assert time.monotonic() - started < DEADLINE_S
    library.set_threads(1)


FORKS_AND_ENDS = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
library.axil_set_threads(3)
counters = (ctypes.c_int32 * 1000)()
library.axil_count_pieces(counters, ctypes.c_int64(1000))
child = os.fork()
library.axil_count_pieces(counters, ctypes.c_int64(1000))
assert list(counters) == [2] * 1000
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print("both")
"""


def test_a_forked_child_computes_too_and_both_end(library: Library) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS_AND_ENDS, library.handle._name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "both\n"), done.stderr
