"""The processes that this one has started, found by the module that they run, and their memory. Knows no figures.

A process that ends while it is looked at is not there.
"""

from __future__ import annotations

import psutil

from bench.command import CannotMeasure


def running(module: str) -> list[psutil.Process]:
    """This process's descendants that run a module, as in `python -m MODULE`.

    Raises:
        CannotMeasure: there is none.
    """
    found = [process for process in psutil.Process().children(recursive=True) if module in _words(process)]
    if not found:
        raise CannotMeasure(f"no process that this one has started runs {module}")
    return found


def resident_mb(module: str) -> float:
    """The memory that this process's descendants hold which run a module, in 10^6 bytes.

    Raises:
        CannotMeasure: there is none.
    """
    return sum(_resident_bytes(process) for process in running(module)) / 1e6


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0
