"""Processes as the tests look at them: which are whose, and which live. One that ends meanwhile is gone, no error."""

from __future__ import annotations

import psutil


def children_of(pid: int) -> list[int]:
    """The process ids of a process's children, in the order in which they were started."""
    return [child.pid for child in sorted(psutil.Process(pid).children(), key=lambda child: child.create_time())]


def parts_of(pid: int) -> dict[str, int]:
    """The children that run a part, by its name (`scheduler`, `model_runner`, `runtime`; a second is `runtime 1`)."""
    found: dict[str, int] = {}
    for child in children_of(pid):
        names = [word.partition(".")[0] for word in _words(child) if word.endswith(".process")]
        for name in names[:1]:
            num_before = sum(other.partition(" ")[0] == name for other in found)
            found[f"{name} {num_before}" if num_before else name] = child
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not collected does not."""
    try:
        return psutil.Process(pid).status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return False


def resident_bytes(pid: int) -> int:
    """The memory that a process holds."""
    return psutil.Process(pid).memory_info().rss


def _words(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return []
