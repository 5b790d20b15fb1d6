"""Which of the kernels' instruction sets this CPU has. Knows no compiler."""

from __future__ import annotations

import enum
import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


class Isa(enum.Enum):
    """An instruction set that the kernels are compiled for; the value is how logs and file names call it."""

    AVX512 = "avx512-bf16"
    AVX2 = "avx2"

    @property
    def flags(self) -> tuple[str, ...]:
        """What a compiler is told."""
        if self is Isa.AVX2:
            return ("-march=x86-64-v3",)
        # gcc 12 has no -march=znver4, so the extensions are named.
        return ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-mavx512vbmi", "-mprefer-vector-width=512")


_NEEDED = {
    Isa.AVX512: {
        *("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
        *("avx512_bf16", "avx512_vnni", "avx512vbmi"),
    },
    Isa.AVX2: {"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"},
}


def usable_isas(flags: frozenset[str] | None = None) -> tuple[Isa, ...]:
    """The instruction sets of kernels that a CPU with these flags runs (None: this machine's), the fastest first."""
    own = cpu_flags() if flags is None else flags
    if not _NEEDED[Isa.AVX2] <= own:
        return ()
    return (Isa.AVX512, Isa.AVX2) if _NEEDED[Isa.AVX512] <= own else (Isa.AVX2,)


def is_x86_64() -> bool:
    """Whether compilers on this machine know the instruction sets at all."""
    return platform.machine() in ("x86_64", "AMD64")


def cpu_flags() -> frozenset[str]:
    """What the kernel says that this CPU can; empty on another architecture than x86-64."""
    if not is_x86_64():
        return frozenset()
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())
