"""What this machine lets the process use: memory and cores, control groups included. Knows no tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_OWN_SIZE = Path("/proc/self/statm")


def free_memory_bytes() -> int:
    """Memory that can still be taken: what the kernel calls available, or less where a control group limits it."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    return max(0, min([available, *_cgroup_room_bytes()]))


def resident_bytes() -> int:
    """Memory that this process holds now, what it shares with others included."""
    return int(_OWN_SIZE.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def usable_cores() -> int:
    """Cores that this process may keep busy: its affinity, or less where a control group has a quota."""
    cores = len(os.sched_getaffinity(0))
    for directory in _directories(""):
        quota, _, period = (_read(directory / "cpu.max") or "max").partition(" ")
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period or 100_000)))
    for directory in _directories("cpu"):
        quota_us, period_us = _read(directory / "cpu.cfs_quota_us"), _read(directory / "cpu.cfs_period_us")
        if quota_us is not None and period_us is not None and int(quota_us) > 0:
            cores = min(cores, max(1, int(quota_us) // int(period_us)))
    return cores


def num_threads(asked_for: int | None, *, num_ranks: int = 1) -> int:
    """Threads for the arithmetic of one of so many processes: those asked for, or its part of the usable cores."""
    return asked_for or max(1, usable_cores() // num_ranks)


def _cgroup_room_bytes() -> Iterator[int]:
    for directory in _directories(""):
        limit, used = _read(directory / "memory.max"), _read(directory / "memory.current")
        if limit is not None and used is not None and limit != "max":
            yield int(limit) - int(used) + _statistic(directory, "inactive_file")
    for directory in _directories("memory"):
        limit, used = _read(directory / "memory.limit_in_bytes"), _read(directory / "memory.usage_in_bytes")
        if limit is not None and used is not None:  # no limit is a number above all memory
            yield int(limit) - int(used) + _statistic(directory, "total_inactive_file")


def _statistic(directory: Path, name: str) -> int:
    lines = (_read(directory / "memory.stat") or "").splitlines()
    return int(dict(line.split(" ", 1) for line in lines).get(name, 0))


def _directories(controller: str) -> Iterator[Path]:
    """This process's control group and those around it; a version 1 hierarchy has its controller's name.

    In a container the group may be called by the name that it has outside, where only the root is to be seen.
    """
    own = "/"
    for line in (_read(_OWN_GROUP) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            own = path
    root = _CGROUP_ROOT / controller
    directory = root / own.strip("/")
    yield directory
    while directory != root and root in directory.parents:
        directory = directory.parent
        yield directory


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
