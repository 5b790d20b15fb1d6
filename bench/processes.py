"""The processes that this one has started, found by the module that they run, and their memory. Knows no figures.

A process that ends while it is looked at is not there.
"""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from bench.command import CannotMeasure


def child_running(module: str, parent_id: int | None = None) -> int:
    """The process id of a process's own child that runs a module, as in `python -m MODULE`; by default, of this one's.

    Raises:
        CannotMeasure: there is none.
    """
    return _running(module, psutil.Process(parent_id).children())[0].pid


def resident_mb(module: str, parent_id: int | None = None) -> float:
    """The memory of a process's children, and theirs, that run a module, in 10^6 bytes; by default, of this one's.

    Raises:
        CannotMeasure: there is none.
    """
    found = _running(module, psutil.Process(parent_id).children(recursive=True))
    return sum(_resident_bytes(process) for process in found) / 1e6


def family_mb(process_id: int) -> float:
    """The memory of a process and all below it, what they share counted once, in 10^6 bytes."""
    process = psutil.Process(process_id)
    return sum(_proportional_bytes(each) for each in (process, *process.children(recursive=True))) / 1e6


def _running(module: str, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    found = [process for process in processes if module in _words(process)]
    if not found:
        raise CannotMeasure(f"no process of those that were started runs {module}")
    return found


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


def _proportional_bytes(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except psutil.NoSuchProcess:
        return 0
