"""Which of the kernels' instruction sets this CPU has. Knows no compiler."""

from __future__ import annotations

import enum
import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


class Isa(enum.Enum):
    """What the kernels are compiled for, the fastest first; the value is how logs and file names call it."""

    AMX = "amx"
    AVX512 = "avx512-bf16"
    AVX2 = "avx2"

    @property
    def flags(self) -> tuple[str, ...]:
        """What a compiler is told."""
        if self is Isa.AVX2:
            return ("-march=x86-64-v3",)
        # gcc 12 has no -march=znver4, so the extensions are named.
        avx512 = ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-mavx512vbmi", "-mprefer-vector-width=512")
        return avx512 if self is Isa.AVX512 else (*avx512, "-mamx-tile", "-mamx-bf16", "-mamx-int8")


_OF_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"})
_OF_AVX512 = _OF_AVX2 | {
    *("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    *("avx512_bf16", "avx512_vnni", "avx512vbmi"),
}
_NEEDED = {
    Isa.AMX: _OF_AVX512 | {"amx_tile", "amx_bf16", "amx_int8"},
    Isa.AVX512: _OF_AVX512,
    Isa.AVX2: _OF_AVX2,
}


def usable_isas(flags: frozenset[str] | None = None) -> tuple[Isa, ...]:
    """The instruction sets of kernels that a CPU with these flags runs (None: this machine's), the fastest first."""
    own = cpu_flags() if flags is None else flags
    return tuple(isa for isa in Isa if _NEEDED[isa] <= own)


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
