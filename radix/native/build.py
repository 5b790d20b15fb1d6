"""The compiled tree's library, built once for every source and compiler. Knows no function of it, and no numpy."""

from __future__ import annotations

from pathlib import Path

from wire import native
from wire.native import Program

# No contraction, so that ranks are those of Python to the last bit. No instructions of this very CPU: there is no gain.
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")

TREE = Program(Path(__file__).parent / "csrc", name="tree", what="the tree", flags=_FLAGS)


def built(cache: Path | None = None) -> Path:
    """The tree's library, compiled now if nobody has yet (a few seconds).

    Raises:
        CannotBuild: there is none yet, and no compiler, one that fails, or a cache that can't be written.
    """
    return native.built(TREE, cache=cache)
