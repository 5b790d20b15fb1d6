"""Which compiled kernels this process uses: the fastest that this CPU runs and that compute right on it."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from .kernel_check import faults
from .kernels.build import CannotBuild, built, own_isas
from .kernels.cpu import Isa
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
    """The first of the instruction sets whose kernels compute right, where they lie and loaded.

    What has been built is checked once. Those that compute wrongly are named in the log.

    Raises:
        CannotBuild: they can't be compiled or loaded, or none computes right.
    """
    for isa in isas:
        path = built(isa)
        library, stamp = opened(isa, path), path.with_suffix(".checked")
        if stamp.exists():
            return path, library
        wrong = faults(library)
        if not wrong:
            _leave(stamp)
            return path, library
        log.error(
            "the kernels for %s compute wrongly on this CPU (%s) and are not used; please report the CPU's name",
            isa.value,
            "; ".join(wrong),
        )
    raise CannotBuild("none of the kernels computes right on this CPU")


@functools.cache
def _loaded() -> Library:
    return checked(own_isas())[1]


def _leave(stamp: Path) -> None:
    try:
        stamp.touch()
    except OSError as error:
        log.debug("the kernels will be checked again at the next start: %s", error)
