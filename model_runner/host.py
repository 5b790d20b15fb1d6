"""What this machine lets the process use: memory and cores, control groups included. Knows no tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def free_memory_bytes() -> int:
    """Memory that can still be taken: what the kernel calls available, or less where a control group limits it."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    return max(0, min([available, *_cgroup_room_bytes()]))


def usable_cores() -> int:
    """Cores that this process may keep busy: its affinity, or less where a control group has a quota."""
    cores = len(os.sched_getaffinity(0))
    for directory in _cgroup_directories():
        quota, _, period = (_read(directory / "cpu.max") or "max").partition(" ")
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period or 100_000)))
    return cores


def _cgroup_room_bytes() -> Iterator[int]:
    for directory in _cgroup_directories():
        limit, used = _read(directory / "memory.max"), _read(directory / "memory.current")
        if limit is None or used is None or limit == "max":
            continue
        statistics = dict(line.split(" ", 1) for line in (_read(directory / "memory.stat") or "").splitlines())
        yield int(limit) - int(used) + int(statistics.get("inactive_file", 0))


def _cgroup_directories() -> Iterator[Path]:
    own = next((line[3:] for line in (_read(_OWN_GROUP) or "").splitlines() if line[:3] == "0::"), "/")
    directory = _CGROUP_ROOT / own.strip("/")
    yield directory
    while directory != _CGROUP_ROOT and _CGROUP_ROOT in directory.parents:
        directory = directory.parent
        yield directory


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
