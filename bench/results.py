"""Writes the figures of one measurement as JSON, so that they can be compared later. Knows no measurement.

{"machine": "CPU, cores, memory", "commit": "…", "date": "…", "command": "…", "figures": {"name_with_unit": number}}
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

AMOUNTS = ("_us", "_ms", "_s", "_mb", "_tokens")
UNITS = (*AMOUNTS, "_percent", "_ratio", "_count", "_per_s", "_per_cached_token", "_share", "_over_fcfs")
ROOT = Path(__file__).resolve().parent.parent


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--json FILE`, refused at once when FILE can't be written there."""
    parser.add_argument("--json", type=_writable, metavar="FILE", help="also write the figures to FILE as JSON")


def command_line(module: str) -> str:
    """The command that runs this measurement again, with the arguments it was given."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def write(path: Path | None, figures: Mapping[str, float], command: str) -> None:
    """Write the figures with machine, commit, date and command; does nothing when `path` is None.

    Raises:
        ValueError: a figure's name does not end in its unit, or its value is not a finite number.
    """
    for name, value in figures.items():
        if not name.endswith(UNITS):
            raise ValueError(f"figure {name} must end in its unit, one of {', '.join(UNITS)}")
        if not math.isfinite(value):
            raise ValueError(f"figure {name} must be a finite number, got {value}")
    if path is None:
        return
    record = {
        "machine": machine(),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "figures": dict(figures),
    }
    path.write_text(json.dumps(record, indent=2) + "\n")


def machine() -> str:
    """CPU model, usable cores and memory of this machine."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{_cpu_model()}, {len(os.sched_getaffinity(0))} cores, {memory_bytes / 2**30:.0f} GiB"


def commit() -> str:
    """The checkout's commit, with `-dirty` when tracked files differ from it; `unknown` without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _writable(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path.parent} is no directory; create it or name another file")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a directory; name a file")
    return path
