"""Profiles of the arithmetic, by torch's own profiler: begun and ended on request, written as a Chrome trace.

Knows no sockets and no plans; it is told when a step has been executed.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from pathlib import Path

import torch

from wire.messages.to_scheduler import ProfileWish

from .config import RunnerConfig

log = logging.getLogger(__name__)


class WrongTime(Exception):
    """A profile is begun while one runs, or ended while none does; says so."""


def profile_dir(config: RunnerConfig) -> Path:
    """Where profiles are written; it may not be there yet."""
    if config.profile_dir is not None:
        return Path(config.profile_dir)
    return Path(tempfile.gettempdir()) / f"axil-profiles-{os.getuid()}"


class Profiling:
    """At most one profile at a time; the last one's file can still be asked for when it has ended by itself."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: torch.profiler.profile | None = None
        self._steps_left = 0
        self._ended: Path | None = None

    def start(self, wish: ProfileWish) -> None:
        """Begin a profile of the next `num_steps` steps at most: each takes a megabyte or so until it is written.

        Raises:
            WrongTime: one is running.
            OSError: the directory can't be made.
        """
        if self._running is not None:
            raise WrongTime(f"a profile is running, with {self._steps_left} steps to go. End it with /stop_profile.")
        self._directory.mkdir(parents=True, exist_ok=True)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._running = torch.profiler.profile(
            activities=activities, with_stack=wish.with_stack, record_shapes=wish.record_shapes
        )
        self._running.start()
        self._steps_left, self._ended = wish.num_steps, None
        log.info("profile begun steps=%d", wish.num_steps)

    def stop(self) -> Path:
        """End the profile, if it has not ended by itself, and return where it stands.

        Raises:
            WrongTime: none was begun.
            OSError: the file can't be written.
        """
        if self._running is not None:
            self._write(self._running)
        ended, self._ended = self._ended, None
        if ended is None:
            raise WrongTime("no profile is running. Begin one with /start_profile.")
        return ended

    def after_step(self) -> None:
        """A step has been executed; the last one that was asked for ends the profile."""
        if self._running is None:
            return
        self._steps_left -= 1
        if self._steps_left <= 0:
            try:
                self._write(self._running)
            except OSError:
                log.exception("the profile can't be written")

    def _write(self, running: torch.profiler.profile) -> None:
        self._running = None
        running.stop()
        path = self._directory / f"axil-{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6:06}.trace.json"
        running.export_chrome_trace(str(path))
        self._ended = path
        log.info("profile written path=%s", path)
