"""Which compiled kernels this process uses: the fastest that this CPU runs and that compute right on it."""

from __future__ import annotations

import functools
import hashlib
import logging
from pathlib import Path

from .kernel_check import faults
from .kernels.build import CannotBuild, built, cache_directory, own_isas
from .kernels.cpu import Isa, cpu_flags
from .kernels.library import Library, opened

log = logging.getLogger(__name__)


def load_library() -> Library | None:
    """The kernels for this CPU, built and checked if need be; None, and a line that says what is lost, without."""
    try:
        return _loaded()
    except CannotBuild as error:
        log.warning("no CPU kernels, so the model runs in plain torch, several times slower: %s", error)
        return None


def checked(isas: tuple[Isa, ...]) -> tuple[Path, Library]:
    """The first of the instruction sets whose kernels can be had and compute right, where they lie and loaded.

    A library is checked once on a CPU, whoever built it. Those that compute wrongly are named in the log.

    Raises:
        CannotBuild: they can't be compiled or loaded, or none computes right.
    """
    missing = None
    for isa in isas:
        try:
            path = built(isa)
            library = opened(isa, path)
        except CannotBuild as error:
            missing = missing or error
            continue
        wrong = _faults_unless_checked(path, library)
        if wrong:
            log.error(
                "the kernels for %s compute wrongly on this CPU (%s) and are not used; please report the CPU's name",
                isa.value,
                "; ".join(wrong),
            )
            continue
        if missing is not None:
            log.warning("kernels for %s are used, though this CPU runs faster ones: %s", isa.value, missing)
        return path, library
    raise missing or CannotBuild("none of the kernels computes right on this CPU")


@functools.cache
def _loaded() -> Library:
    return checked(own_isas())[1]


def _faults_unless_checked(path: Path, library: Library) -> list[str]:
    try:
        stamp = cache_directory() / f"{path.stem}-{_digest(path)}.checked"
    except CannotBuild as error:
        log.debug("the kernels will be checked again at the next start: %s", error)
        return faults(library)
    if stamp.exists():
        return []
    wrong = faults(library)
    if not wrong:
        _leave(stamp)
    return wrong


def _digest(path: Path) -> str:
    """Of the library's bytes and of what this CPU can: elsewhere the same library is checked anew."""
    digest = hashlib.sha256(path.read_bytes())
    digest.update(" ".join(sorted(cpu_flags())).encode())
    return digest.hexdigest()[:16]


def _leave(stamp: Path) -> None:
    try:
        stamp.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp.touch()
    except OSError as error:
        log.debug("the kernels will be checked again at the next start: %s", error)
