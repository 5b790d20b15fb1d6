from __future__ import annotations

import os
from pathlib import Path

import pytest

from model_runner import host


def _group(root: Path, name: str, files: dict[str, str]) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (root / name / file).write_text(text)


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control group `outer/inner` that this process seems to be in."""
    monkeypatch.setattr(host, "_CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(host, "_OWN_GROUP", tmp_path / "own")
    (tmp_path / "own").write_text("0::/outer/inner\n")
    _group(tmp_path, "outer/inner", {"memory.max": "max", "memory.current": "5"})
    return tmp_path


def test_without_a_limit_the_kernels_figure_counts(group: Path) -> None:
    assert 0 < host.free_memory_bytes() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert host.usable_cores() == len(os.sched_getaffinity(0))


def test_the_limit_of_an_outer_control_group_counts_too(group: Path) -> None:
    limits = {"memory.max": "5000", "memory.current": "4000", "memory.stat": "anon 3900\ninactive_file 100\n"}
    _group(group, "outer", limits)
    assert host.free_memory_bytes() == 1100


def test_a_version_1_group_limits_memory_and_cores(group: Path) -> None:
    (group / "own").write_text("4:memory:/box\n3:cpu,cpuacct:/box\n0::/\n")
    limits = {
        "memory.limit_in_bytes": "5000",
        "memory.usage_in_bytes": "4000",
        "memory.stat": "inactive_file 1\ntotal_inactive_file 100",
    }
    _group(group, "memory/box", limits)
    _group(group, "cpu/box", {"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"})
    assert host.free_memory_bytes() == 1100
    assert host.usable_cores() == 1


def test_a_version_1_group_without_limits_limits_nothing(group: Path) -> None:
    (group / "own").write_text("4:memory:/box\n3:cpu,cpuacct:/box\n")
    _group(group, "memory/box", {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "4000"})
    _group(group, "cpu/box", {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"})
    assert host.free_memory_bytes() > 5000
    assert host.usable_cores() == len(os.sched_getaffinity(0))


def test_in_a_container_the_root_is_the_own_group(group: Path) -> None:
    (group / "own").write_text("4:memory:/docker/0123\n")
    _group(group, "memory", {"memory.limit_in_bytes": "5000", "memory.usage_in_bytes": "4000"})
    assert host.free_memory_bytes() == 1000


def test_a_quota_of_time_limits_the_cores(group: Path) -> None:
    _group(group, "outer", {"cpu.max": "150000 100000"})
    assert host.usable_cores() == 1
