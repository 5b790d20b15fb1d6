"""What a child process and its launcher say to each other, and how neither outlives the other.

The launcher writes JSON lines to the child's standard input: the configuration, then notices. The child writes JSON
lines to the descriptor named by `--status-fd`: progress, then `Started` or `Failed`. End of file on standard input
means that the launcher is gone. Knows nothing of what the processes do.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import os
import shutil
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

GRACE_S = 2.0
"""How long a child may answer its open requests after its launcher has gone."""

_PR_SET_PDEATHSIG = 1

Config = TypeVar("Config")


class PeerDied(Struct, frozen=True, kw_only=True, tag=True):
    """launcher -> child: a process of the launch has died; answer what is open, then exit."""

    process: str
    exit_status: str
    last_words: str


class Shutdown(Struct, frozen=True, kw_only=True, tag=True):
    """launcher -> child: refuse new work, finish or cancel what is open within `grace_s` seconds, exit."""

    grace_s: float


class LauncherGone(Struct, frozen=True, kw_only=True, tag=True):
    """child to itself: the launcher has died; this process ends in `GRACE_S` seconds."""


Notice = PeerDied | Shutdown | LauncherGone


class Progress(Struct, frozen=True, kw_only=True, tag=True):
    """child -> launcher: `done` of `total` units of `what` (a total of 0 only tells the sentence)."""

    what: str
    done: int = 0
    total: int = 0
    unit: str = ""


class Started(Struct, frozen=True, kw_only=True, tag=True):
    """child -> launcher: this process is ready; `facts` are printed."""

    facts: dict[str, str | int | float] = {}


class Failed(Struct, frozen=True, kw_only=True, tag=True):
    """child -> launcher: this process can't start; `message` says why and which flag to change."""

    message: str


Status = Progress | Started | Failed

decode_notice = msgspec.json.Decoder(Notice).decode
decode_status = msgspec.json.Decoder(Status).decode


def to_line(message: object) -> bytes:
    """One JSON line of a configuration, notice or status."""
    return msgspec.json.encode(message) + b"\n"


class Child:
    """This process as its launcher's child."""

    def __init__(self, status_fd: int) -> None:
        self._status_fd = status_fd

    def tell(self, status: Status) -> None:
        """Write one status line to the launcher; a launcher that has gone is noticed by `watch`, not here."""
        try:
            os.write(self._status_fd, to_line(status))
        except BrokenPipeError:
            return

    def watch(self, on_notice: Callable[[Notice], None], *, run_dir: str) -> None:
        """Call `on_notice` from a thread for every notice of the launcher.

        When the launcher goes, the run directory is removed (open connections do not need it), `on_notice` is called
        with `LauncherGone`, and `GRACE_S` later the process ends, whatever its main thread is doing.
        """
        threading.Thread(target=_watch, args=(on_notice, run_dir), name="lifeline", daemon=True).start()


def adopt(config_type: type[Config], *, is_killed_with_launcher: bool) -> tuple[Config, Child]:
    """Take this process's configuration from its launcher; to be called first in `main`.

    SIGINT and SIGTERM are left to the launcher, which tells its children in order. A process that has nothing to say to
    anybody is also killed by the kernel at once when the launcher dies, should its threads hang.
    """
    parser = argparse.ArgumentParser(description="A process of axil; start it with `axil serve`.")
    parser.add_argument("--status-fd", type=int, required=True)
    status_fd = parser.parse_args().status_fd
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if is_killed_with_launcher:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    line = _stdin().readline()
    if not line:
        raise SystemExit("no configuration on standard input: start axil with `axil serve`")
    return msgspec.json.decode(line, type=config_type), Child(status_fd)


def _stdin() -> io.RawIOBase:
    """Standard input without a buffer: its lock, held by a thread that reads, aborts Python at exit."""
    return open(0, "rb", buffering=0, closefd=False)


def _watch(on_notice: Callable[[Notice], None], run_dir: str) -> None:
    for line in _stdin():
        on_notice(decode_notice(line))
    shutil.rmtree(run_dir, ignore_errors=True)
    on_notice(LauncherGone())
    threading.Event().wait(GRACE_S)
    os._exit(os.EX_UNAVAILABLE)
