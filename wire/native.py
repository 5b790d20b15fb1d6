"""Compiles C++ that we ship, once for every source, compiler and set of flags. Knows no contents.

A built library is named by digests of all that it depends on, written beside its place and renamed into it, under a
lock, so that processes that start at the same time build it once. It lies in a per-user cache, or beside its sources
where the package was made with it (`AXIL_BUILD_KERNELS=1`, see `setup.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

COMPILERS = ("g++", "c++", "clang++")
_TIMEOUT_S = 300.0


class CannotBuild(Exception):
    """Why there is no library, in words for the operator."""


@dataclass(frozen=True)
class Program:
    """All `*.cpp` in the folder `sources`, which `flags` make one library of.

    `name` begins its file's name, `what` is what the log calls it.
    """

    sources: Path
    name: str
    what: str
    flags: tuple[str, ...]

    @property
    def shipped(self) -> Path:
        """Where a package that was made with the library has it; the name tells source and flags, as in the cache."""
        files = [part for path in sorted(self.sources.iterdir()) for part in (path.name.encode(), path.read_bytes())]
        digest = _digest(*files, *(flag.encode() for flag in self.flags))
        return self.sources.parent / "built" / f"{self.name}-{digest}.so"


def built(program: Program, *, depends_on: Sequence[str] = (), cache: Path | None = None) -> Path:
    """The program's library: shipped with it, or built, now if nobody has yet; anew when `depends_on` changes.

    Where it can't be built now, one that another compiler made of the same source with the same flags does.

    Raises:
        CannotBuild: there is none, and no compiler, one that fails, or a cache that can't be written.
    """
    shipped = program.shipped
    if _loads(shipped):
        return shipped
    directory = cache_directory() if cache is None else cache
    try:
        return _built_here(program, directory / shipped.stem, depends_on)
    except CannotBuild as error:
        earlier = next(filter(_loads, _newest_first(directory.glob(f"{shipped.stem}-*.so"))), None)
        if earlier is None:
            raise
        log.info("no build of %s here, so one made earlier is used path=%s: %s", program.what, earlier, error)
        return earlier


def ship(program: Program, directory: Path) -> Path:
    """Build the program's library into a directory that becomes its `shipped`.

    Raises:
        CannotBuild: no compiler, or one that fails.
    """
    library = directory / program.shipped.name
    directory.mkdir(parents=True, exist_ok=True)
    _build(_compiler(), program, library)
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


def _built_here(program: Program, stem: Path, depends_on: Sequence[str]) -> Path:
    compiler = _compiler()
    made_by = _digest(*(part.encode() for part in (*depends_on, compiler, _run([compiler, "--version"]))))
    directory, library = stem.parent, stem.with_name(f"{stem.name}-{made_by}.so")
    if library.exists():
        return library
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(library.with_suffix(".lock")):
            if not library.exists():
                _build(compiler, program, library)
    except OSError as error:
        raise CannotBuild(f"the cache {directory} can't be written ({error.strerror}); set XDG_CACHE_HOME") from error
    return library


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def _loads(path: Path) -> bool:
    """Whether there is such a library and this machine can load it: another may have an older C library."""
    if not path.exists():
        return False
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        log.warning("a library that was built elsewhere can't be loaded: %s", error)
        return False
    return True


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part + b"\0")
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(compiler: str, program: Program, library: Path) -> None:
    log.info("building %s, once compiler=%s cache=%s", program.what, compiler, library.parent)
    started = time.monotonic()
    scratches = f"{library.stem}-"
    for left in library.parent.glob(f"{scratches}*"):  # by a build that was killed: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=scratches, dir=library.parent) as scratch:
        sources = sorted(program.sources.glob("*.cpp"))
        objects = [Path(scratch) / f"{path.stem}.o" for path in sources]
        commands = [
            [compiler, *program.flags, "-c", str(source), "-o", str(path)]
            for source, path in zip(sources, objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count() or 1) as executor:
            list(executor.map(_run, commands))
        linked = Path(scratch) / library.name
        _run([compiler, *program.flags, "-shared", *map(str, objects), "-o", str(linked)])
        linked.replace(library)
    log.info("%s built seconds=%.1f path=%s", program.what, time.monotonic() - started, library)


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
