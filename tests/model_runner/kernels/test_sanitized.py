"""The kernels' own tests once more, in a process where every access to memory and every shift is checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from model_runner.kernels.build import built
from model_runner.kernels.library import Library

FLAGS = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
RUNS_TESTS = """
import sys, pathlib, pytest
from model_runner.kernels import library
from model_runner.kernels.cpu import Isa
isa, path, *tests = sys.argv[1:]
library._loaded = lambda: library.opened(Isa(isa), pathlib.Path(path))
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *tests]))
"""
TESTS = (
    "tests/model_runner/test_cpu_backend.py",
    "tests/model_runner/kernels/test_ops.py",
    "tests/model_runner/kernels/test_threads.py::test_every_piece_is_done_once_whatever_the_number_of_threads",
    "tests/model_runner/test_exactness.py::test_all_layers_in_one_call_give_the_bits_of_layers_op_by_op",
)
ROOT = Path(__file__).parent.parent.parent.parent


def _runtime() -> str:
    """The sanitizer's library, which must come before all others."""
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    path = found.stdout.strip()
    if found.returncode or not Path(path).is_absolute():
        pytest.skip("no address sanitizer beside g++")
    return path


def test_the_kernels_touch_no_memory_but_their_own_and_do_nothing_undefined(library: Library) -> None:
    path = built(library.isa, extra_flags=FLAGS)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUNS_TESTS, library.isa.value, str(path), *TESTS],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=280,
        check=False,
        env=os.environ | {"LD_PRELOAD": _runtime(), "ASAN_OPTIONS": "detect_leaks=0"},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
