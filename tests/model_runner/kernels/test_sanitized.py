"""The kernels in a process where every access to memory and every shift is checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from model_runner.kernels.build import built
from model_runner.kernels.library import Library

FLAGS = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
CALLS = Path(__file__).with_name("sanitized_calls.py")


def test_the_kernels_touch_no_memory_but_their_own_and_do_nothing_undefined(library: Library) -> None:
    path = built(library.isa, extra_flags=FLAGS)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(CALLS), str(path), str(int(library.has_bfloat16_products))],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=os.environ | {"LD_PRELOAD": _runtime(), "ASAN_OPTIONS": "detect_leaks=0"},
    )
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stderr[-4000:]


def _runtime() -> str:
    """The sanitizer's library, which must come before all others."""
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    path = found.stdout.strip()
    if found.returncode or not Path(path).is_absolute():
        pytest.skip("no address sanitizer beside g++")
    return path
