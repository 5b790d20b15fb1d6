"""One child process of a launch: its pipes, and the threads that turn what comes out of them into events."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from wire.child import Failed, Notice, Status, decode_status, to_line
from wire.log import level_of

_LAST_WORDS_LINES = 20
_DRAIN_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process of a server: `module` is run with `config` as its configuration."""

    name: str
    module: str
    config: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A part has sent a status."""

    part: str
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """A part's process has ended, for whatever reason."""

    part: str
    exit_status: str
    last_words: str

    @property
    def is_in_order(self) -> bool:
        """Whether it ended by itself, and says that all is well."""
        return self.exit_status == _exit_status(os.EX_OK)


class RunningPart:
    """A started part. `on_event` is called from this part's threads, `Died` last."""

    def __init__(self, part: Part, on_event: Callable[[Said | Died], None], forward: Callable[[str], None]) -> None:
        """Start the process; `forward` is given every line that it writes.

        The process may ask the kernel to die with the thread that started it, so that thread has to stay.
        """
        self._name = part.name
        self._on_event = on_event
        self._forward = forward
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS_LINES)
        status_read, status_write = os.pipe()
        try:
            # A process group of its own: Ctrl-C in the terminal reaches the launcher only, which stops all in order.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", part.module, "--status-fd", str(status_write)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(status_write,),
                process_group=0,
            )
        except BaseException:
            os.close(status_read)
            raise
        finally:
            os.close(status_write)
        self._write(to_line(part.config))
        readers = [
            threading.Thread(target=self._read_output, name=f"{part.name}-output", daemon=True),
            threading.Thread(target=self._read_status, args=(status_read,), name=f"{part.name}-status", daemon=True),
        ]
        for reader in readers:
            reader.start()
        threading.Thread(target=self._reap, args=(readers,), name=f"{part.name}-reaper", daemon=True).start()

    def tell(self, notice: Notice) -> None:
        """Send a notice; a process that no longer listens is reported by `Died`, not here."""
        self._write(to_line(notice))

    def kill(self) -> None:
        """End the process and its own children at once."""
        if self._process.returncode is None:
            self._kill_group()

    def close(self) -> None:
        """Close this end of the process's input; to be called when it has died."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for raw in output:
                line = raw.decode("utf-8", "replace").rstrip("\n")
                level = level_of(line)
                if level is None or level > logging.INFO:  # what went well is no reason to die of
                    self._last_words.append(line)
                self._forward(line)

    def _read_status(self, status_fd: int) -> None:
        with os.fdopen(status_fd, "rb") as lines:
            for line in lines:
                self._on_event(Said(part=self._name, status=_decoded(line)))

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has been collected meanwhile
            os.killpg(self._process.pid, signal.SIGKILL)

    def _reap(self, readers: list[threading.Thread]) -> None:
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._kill_group()  # compilers that it has left; until it is collected nobody else can have its number
        return_code = self._process.wait()
        for reader in readers:
            reader.join(_DRAIN_S)  # not for ever: a grandchild may hold the pipe open
        last_words = "\n".join(self._last_words)
        self._on_event(Died(part=self._name, exit_status=_exit_status(return_code), last_words=last_words))


def _decoded(line: bytes) -> Status:
    try:
        return decode_status(line)
    except msgspec.DecodeError as error:
        return Failed(message=f"it sent a status that is none ({error}); are all of axil's packages of one version?")


def _exit_status(return_code: int) -> str:
    if return_code >= 0:
        return f"exit status {return_code}"
    try:
        return f"killed by {signal.Signals(-return_code).name}"
    except ValueError:
        return f"killed by signal {-return_code}"
