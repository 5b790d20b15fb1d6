"""Has the compiled tree built and loaded, once in a process."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from wire import native
from wire.native import CannotBuild

from .library import SOURCES, Library, opened

log = logging.getLogger(__name__)

# No contraction, so that ranks are those of Python to the last bit. No instructions of this very CPU: there is no gain.
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")


def built(cache: Path | None = None) -> Path:
    """The tree's library, compiled now if nobody has yet (a few seconds).

    Raises:
        CannotBuild: no compiler, one that fails, or a cache that can't be written.
    """
    return native.built(SOURCES, name="tree", what="the tree", flags=_FLAGS, cache=cache)


@functools.cache
def load_library() -> Library | None:
    """The tree's library, built if need be; None, with one line that says what is lost, where it can't be."""
    try:
        return opened(built())
    except (CannotBuild, OSError) as error:
        log.warning("no compiled tree, so the scheduler's bookkeeping takes several times as long: %s", error)
        return None
