"""The kernels as a library, compiled once for every source, compiler and CPU. Knows no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wire import native
from wire.native import CannotBuild, cache_directory

from .cpu import Isa, cpu_flags, usable_isas

__all__ = ["SOURCES", "CannotBuild", "built", "cache_directory", "own_isas"]

SOURCES = Path(__file__).parent / "csrc"

# No contraction: a product and a sum are fused where the source says so, in every instance of a template alike.
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-pthread")


def own_isas() -> tuple[Isa, ...]:
    """What the kernels can be compiled for on this CPU, the fastest first.

    Raises:
        CannotBuild: there is nothing.
    """
    isas = usable_isas()
    if not isas:
        raise CannotBuild("this CPU has neither AVX2 with FMA nor AVX-512")
    return isas


def built(isa: Isa, *, cache: Path | None = None, extra_flags: Sequence[str] = ()) -> Path:
    """The kernels' library for an instruction set, compiled now if nobody has yet (about 20 s).

    Raises:
        CannotBuild: no compiler, one that fails, or a cache that can't be written.
    """
    flags = (*_FLAGS, *isa.flags, *extra_flags)
    return native.built(
        SOURCES, name=isa.value, what="the kernels", flags=flags, depends_on=sorted(cpu_flags()), cache=cache
    )
