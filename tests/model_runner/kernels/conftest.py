from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model_runner.kernels.build import built, programs
from model_runner.kernels.cpu import Isa
from model_runner.kernels.library import Library, opened
from wire import native

collect_ignore = ["sanitized_calls.py"]  # a program that a test runs, not a module

PLAIN_C = Path(__file__).with_name("avx512_in_plain_c.h")
TILES_IN_PLAIN_C = Path(__file__).with_name("amx_in_plain_c.h")
CHANGES = {
    "#include <immintrin.h>": f'#include "{PLAIN_C.name}"',
    'asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(x));': "sum = _mm512_dpbusd_epi32(sum, weights, x);",
    'asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*reinterpret_cast<const Act(*)[2]>(x)));': (
        "sum = accumulate(sum, weights, all_part<0>(x));"
    ),
}


@pytest.fixture(scope="session")
def avx2(library: Library) -> Library:
    """The kernels for AVX2, where this machine's are others; in one thread."""
    if library.isa is Isa.AVX2:
        pytest.skip("these are this machine's")
    loaded = opened(Isa.AVX2, built(Isa.AVX2))
    loaded.set_threads(1)
    return loaded


@pytest.fixture(scope="session")
def avx512_in_plain_c(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The kernels as they are written for AVX-512, on a CPU that needs no more than AVX2; in one thread."""
    return _in_plain_c(Isa.AVX512, tmp_path_factory.mktemp("avx512"))


@pytest.fixture(scope="session")
def amx_in_plain_c(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The same of AMX."""
    return _in_plain_c(Isa.AMX, tmp_path_factory.mktemp("amx"))


def _in_plain_c(isa: Isa, folder: Path) -> Library:
    sources = folder / "csrc"
    shutil.copytree(programs()[0].sources, sources, ignore=shutil.ignore_patterns("ceilings.cpp"))
    shutil.copy(PLAIN_C, sources)
    simd = (sources / "simd.h").read_text()
    for written, instead in CHANGES.items():
        assert simd.count(written) == 1, written
        simd = simd.replace(written, instead)
    (sources / "simd.h").write_text(simd)
    flags = ("-std=c++17", "-O1", "-fPIC", "-march=x86-64-v3", "-ffp-contract=off", "-pthread", "-Wno-psabi")
    if isa is Isa.AMX:
        shutil.copy(TILES_IN_PLAIN_C, sources / "amx.h")
        flags = (*flags, "-D__AMX_TILE__", "-D__AMX_BF16__", "-D__AMX_INT8__")
    name = f"{isa.value}-in-plain-c"
    loaded = opened(isa, native.built(native.Program(sources, name=name, what=name, flags=flags)))
    loaded.set_threads(1)
    return loaded
