"""The processes of one engine: started, watched over and stopped by a thread that lives as long as they do.

Children may ask the kernel to die with the thread that started them, so it can't be the caller's. Knows no requests.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from wire.errors import Unavailable
from wire.log import level_of

from .config import MODULES, ServerConfig
from .display import Display
from .keeper import KeeperLaunch
from .launch import (
    Hurried,
    Launch,
    StopAsked,
    describe,
    stop_after_death,
    stop_in_order,
    wait_for_end,
    wait_until_started,
)
from .model_files import ModelFiles
from .part import Died, Part, Said
from .run_dir import run_directory
from .serve import server_parts

log = logging.getLogger(__name__)


class EngineProcesses:
    """The scheduler and the model runner of one engine, and the keeper of their run directory."""

    def __init__(
        self,
        config: ServerConfig,
        files: ModelFiles,
        *,
        on_death: Callable[[str], None],
        modules: Mapping[str, str] = MODULES,
    ) -> None:
        """Start the processes; `on_death` is called from a thread with a sentence when one dies after the start.

        `started` is done when all are ready, with StartFailed when one could not start; then nothing is left of them.
        """
        self._config = config
        self._files = files
        self._on_death = on_death
        self._modules = modules
        self._launch: concurrent.futures.Future[Launch] = concurrent.futures.Future()
        self.started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._run_dir = Path()
        self._thread = threading.Thread(target=self._run, name="axil-launcher", daemon=True)
        self._thread.start()

    def run_dir(self) -> Path:
        """The directory of the sockets, once the processes have been started."""
        self._launch.result()
        return self._run_dir

    def stop(self) -> None:
        """End the processes and remove their directory; returns when that is done."""
        concurrent.futures.wait([self._launch])
        if self._launch.exception() is None:
            self._launch.result().ask_to_stop("the engine is closed")
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def abandon(self) -> None:
        """In a forked child: let go of the processes, which belong to the parent."""
        if self._launch.done() and self._launch.exception() is None:
            self._launch.result().abandon()

    def _run(self) -> None:
        try:
            with run_directory() as self._run_dir:
                launch = Launch(self._parts(), forward=_forward)
                try:
                    launch.start()
                    self._launch.set_result(launch)
                    self._watch(launch)
                finally:
                    launch.kill()
        except BaseException as error:
            # Whoever waits is told; the thread itself has nobody to raise to.
            waiting = [future for future in (self._launch, self.started) if not future.done()]
            for future in waiting:
                future.set_exception(error)
            if not waiting:
                log.exception("the engine's launcher failed")
                self._on_death("the engine's launcher failed; the log has the traceback. Make another Engine.")

    def _parts(self) -> tuple[Part, ...]:
        parts = server_parts(self._config, self._files, self._run_dir, version="", modules=self._modules)
        keeper = Part(name="keeper", module="runtime.keeper", config=KeeperLaunch(run_dir=str(self._run_dir)))
        return (keeper, *(part for part in parts if part.name != "tokenizer"))

    def _watch(self, launch: Launch) -> None:
        display = Display()
        try:
            started = wait_until_started(
                launch, within_s=self._config.launch.start_timeout, on_said=lambda said: _show(display, said)
            )
        finally:
            display.close()
        if isinstance(started, StopAsked):
            self.started.set_exception(Unavailable("the engine was closed while it started."))
            return
        self.started.set_result(None)
        end = wait_for_end(launch)
        if isinstance(end, StopAsked):
            with contextlib.suppress(Hurried):
                fault = stop_in_order(launch, grace_s=0)
                if isinstance(fault, Died):
                    log.warning("while the engine closed, %s", describe(fault))
            return
        sentence = _what_died(end)
        log.error("%s", sentence)
        self._on_death(sentence)
        stop_after_death(launch, end)


def _show(display: Display, said: Said) -> None:
    if said.part != "keeper":
        display.said(said)


def _forward(line: str) -> None:
    """A process's line under its own level, so that the program's logging decides what is seen."""
    log.log(level_of(line) or logging.INFO, "%s", line)


def _what_died(died: Died) -> str:
    words = f" Its last words: {died.last_words}" if died.last_words else ""
    return f"the {died.part} process died ({died.exit_status}). Make another Engine.{words}"
