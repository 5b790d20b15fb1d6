"""Compiles C++ that we ship into a per-user cache, once for every source, compiler and set of flags. Knows no contents.

A built library is named by a digest of all that it depends on, written beside its place and renamed into it, under a
lock, so that processes that start at the same time build it once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

log = logging.getLogger(__name__)

COMPILERS = ("g++", "c++", "clang++")
_TIMEOUT_S = 300.0


class CannotBuild(Exception):
    """Why there is no library, in words for the operator."""


def built(
    sources: Path,
    *,
    name: str,
    what: str,
    flags: Sequence[str],
    depends_on: Sequence[str] = (),
    cache: Path | None = None,
) -> Path:
    """The library of all `*.cpp` in the folder `sources`, compiled now if nobody has yet.

    `name` begins its file's name, `what` is what the log calls it; it is built anew when `depends_on` changes.

    Raises:
        CannotBuild: no compiler, one that fails, or a cache that can't be written.
    """
    compiler = _compiler()
    directory = cache_directory() if cache is None else cache
    library = directory / f"{name}-{_digest(sources, compiler, (*flags, *depends_on))}.so"
    if library.exists():
        return library
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(library.with_suffix(".lock")):
            if not library.exists():
                _build(compiler, flags, sources, library, what)
    except OSError as error:
        raise CannotBuild(f"the cache {directory} can't be written ({error.strerror}); set XDG_CACHE_HOME") from error
    return library


def cache_directory() -> Path:
    """Where built libraries lie: `$XDG_CACHE_HOME/axil/kernels`, by default under `~/.cache`.

    Raises:
        CannotBuild: there is no home directory.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(given) if given.startswith("/") else Path.home() / ".cache") / "axil" / "kernels"
    except RuntimeError:
        raise CannotBuild("there is no home directory to build into; set XDG_CACHE_HOME") from None


def _compiler() -> str:
    named = os.environ.get("CXX")
    for name in (named,) if named else COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    looked_for = f"CXX={named}" if named else ", ".join(COMPILERS)
    raise CannotBuild(f"no C++ compiler was found ({looked_for}); on Debian and Ubuntu: sudo apt install g++")


def _digest(sources: Path, compiler: str, depends_on: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(sources.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    version = _run([compiler, "--version"])
    for part in (*depends_on, compiler, version):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(compiler: str, flags: Sequence[str], sources: Path, library: Path, what: str) -> None:
    log.info("building %s, once compiler=%s cache=%s", what, compiler, library.parent)
    started = time.monotonic()
    scratches = f"{library.stem}-"
    for left in library.parent.glob(f"{scratches}*"):  # by a build that was killed: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=scratches, dir=library.parent) as scratch:
        objects = [Path(scratch) / f"{path.stem}.o" for path in sorted(sources.glob("*.cpp"))]
        commands = [[compiler, *flags, "-c", str(sources / f"{path.stem}.cpp"), "-o", str(path)] for path in objects]
        with ThreadPoolExecutor(os.cpu_count() or 1) as executor:
            list(executor.map(_run, commands))
        linked = Path(scratch) / library.name
        _run([compiler, *flags, "-shared", *map(str, objects), "-o", str(linked)])
        linked.replace(library)
    log.info("%s built seconds=%.1f path=%s", what, time.monotonic() - started, library)


def _run(command: Sequence[str]) -> str:
    """The command's output.

    Raises:
        CannotBuild: it failed; with the first line of what it said that names an error.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuild(f"{command[0]} could not be run: {error}") from error
    if done.returncode == 0:
        return done.stdout
    said = (done.stderr or done.stdout).splitlines()
    why = next((line for line in said if "error" in line.lower()), said[0] if said else f"status {done.returncode}")
    raise CannotBuild(f"{command[0]} failed: {why.strip()}")
