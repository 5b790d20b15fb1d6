"""The private directory of one launch, gone when the launch is; also clears those whose launcher was killed."""

from __future__ import annotations

import fcntl
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from wire.sockets import make_run_dir

log = logging.getLogger(__name__)

_LOCK = "launcher.lock"


@contextmanager
def run_directory() -> Iterator[Path]:
    """A new directory for the sockets of one launch, removed at the end."""
    for parent in {Path(tempfile.gettempdir()), Path("/tmp")}:
        _remove_stale(parent)
    run_dir = make_run_dir()
    try:
        with _locked(run_dir):
            yield run_dir
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    # The lock is taken under another name, so that nobody finds a lock file that its launcher does not hold yet.
    with (run_dir / "taking.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (run_dir / "taking.lock").rename(run_dir / _LOCK)
        yield


def _remove_stale(parent: Path) -> None:
    """Remove run directories whose lock nobody holds any more: the kernel drops it when its launcher dies."""
    for lock in parent.glob(f"axil-*/{_LOCK}"):
        try:
            with lock.open("r+") as file:
                if _is_free(file):
                    shutil.rmtree(lock.parent, ignore_errors=True)
                    log.info("removed run_dir=%s of a launch that was killed", lock.parent)
        except OSError:
            continue  # another user's, or gone meanwhile


def _is_free(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
