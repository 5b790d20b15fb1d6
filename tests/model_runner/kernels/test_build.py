from __future__ import annotations

import pytest

from model_runner.kernels import library
from model_runner.kernels.build import CannotBuild, built
from model_runner.kernels.cpu import Isa, best_isa

AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni"}


def test_the_best_instruction_set_that_the_cpu_has_whole_is_taken() -> None:
    assert best_isa(AVX512) is Isa.AVX512
    assert best_isa(AVX512 - {"avx512_bf16"}) is Isa.AVX2
    assert best_isa(AVX2 - {"fma"}) is None
    assert best_isa(frozenset()) is None


def test_a_machine_without_kernels_serves_without_them_and_says_what_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_there() -> library.Library:
        raise CannotBuild("no C++ compiler was found")

    monkeypatch.setattr(library, "_loaded", none_there)
    assert library.load_library() is None
    (record,) = caplog.records
    assert "no C++ compiler was found" in record.getMessage() and "slower" in record.getMessage()


@pytest.mark.parametrize("isa", [isa for isa in Isa if isa is not best_isa()], ids=lambda isa: isa.value)
def test_the_kernels_compile_for_the_other_instruction_set_too(isa: Isa) -> None:
    assert built(isa, extra_flags=("-O1",)).exists()
