"""The kernels as a library, compiled once for every source, compiler and CPU. Knows no torch, and no numpy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wire import native
from wire.native import CannotBuild, Program, cache_directory

from .cpu import Isa, cpu_flags, is_x86_64, usable_isas

__all__ = ["CannotBuild", "built", "cache_directory", "own_isas", "programs"]

_SOURCES = Path(__file__).parent / "csrc"

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


def programs() -> list[Program]:
    """The kernels for every instruction set that a compiler here knows, whether this CPU has it or not."""
    return [_program(isa) for isa in Isa] if is_x86_64() else []


def built(isa: Isa, *, cache: Path | None = None, extra_flags: Sequence[str] = ()) -> Path:
    """The kernels' library for an instruction set, compiled now if nobody has yet (about 20 s).

    Raises:
        CannotBuild: there is none yet, and no compiler, one that fails, or a cache that can't be written.
    """
    return native.built(_program(isa, extra_flags), depends_on=sorted(cpu_flags()), cache=cache)


def _program(isa: Isa, extra_flags: Sequence[str] = ()) -> Program:
    return Program(_SOURCES, name=isa.value, what="the kernels", flags=(*_FLAGS, *isa.flags, *extra_flags))
