from __future__ import annotations

from pathlib import Path

import pytest

from model_runner import kernel_check, kernel_choice
from model_runner.kernel_choice import checked, load_library
from model_runner.kernels.build import CannotBuild, built
from model_runner.kernels.cpu import Isa, usable_isas
from model_runner.kernels.library import Library, opened
from wire import native

AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni", "avx512vbmi"}


AMX = AVX512 | {"amx_tile", "amx_bf16", "amx_int8"}


def test_the_best_instruction_set_that_the_cpu_has_whole_comes_first() -> None:
    assert usable_isas(AMX) == (Isa.AMX, Isa.AVX512, Isa.AVX2)
    assert usable_isas(AMX - {"amx_bf16"}) == usable_isas(AVX512) == (Isa.AVX512, Isa.AVX2)
    for missing in ("avx512_bf16", "avx512vbmi"):
        assert usable_isas(AVX512 - {missing}) == (Isa.AVX2,)
    assert usable_isas(AVX2 - {"fma"}) == ()
    assert usable_isas(frozenset()) == ()


def test_where_linux_refuses_the_registers_the_next_kernels_are_used_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "refused.cpp").write_text('extern "C" int axil_prepare() { return 1; }')
    refused = native.built(native.Program(tmp_path, name="refused", what="a library", flags=("-fPIC",)), cache=tmp_path)
    with pytest.raises(CannotBuild, match=r"use amx \(Operation not permitted\)"):
        opened(Isa.AMX, refused)
    place = built(Isa.AVX2)
    monkeypatch.setattr(kernel_choice, "built", lambda isa: refused if isa is Isa.AMX else place)
    assert checked((Isa.AMX, Isa.AVX2))[0] == place
    assert "not let this process use amx" in caplog.text


def test_a_machine_without_kernels_serves_without_them_and_says_what_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_there() -> Library:
        raise CannotBuild("no C++ compiler was found")

    monkeypatch.setattr(kernel_choice, "_loaded", none_there)
    assert load_library() is None
    (record,) = caplog.records
    assert "no C++ compiler was found" in record.getMessage() and "slower" in record.getMessage()


@pytest.mark.parametrize("isa", [isa for isa in Isa if isa not in usable_isas()[:1]], ids=lambda isa: isa.value)
def test_the_kernels_compile_for_the_other_instruction_set_too(isa: Isa) -> None:
    assert built(isa, extra_flags=("-O1",)).exists()


@pytest.mark.parametrize("other", ["avx2", "avx512_in_plain_c", "amx_in_plain_c"])
def test_the_other_instruction_set_than_this_machines_computes_right_too(
    request: pytest.FixtureRequest, other: str
) -> None:
    assert kernel_check.faults(request.getfixturevalue(other)) == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("axil_linear", "linear layers"),
        ("axil_write_rows", "linear layers"),
        ("axil_attention_forward", "attention"),
        ("axil_add_norm", "norms"),
        ("axil_sample", "tokens"),
        ("axil_top_logits", "tokens"),
    ],
)
def test_a_kernel_that_computes_wrongly_is_named(
    library: Library, name: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernel_check.faults(library) == []
    function = Library.function

    def one_does_nothing(self: Library, called: str, *argument_types: object, result: object = None) -> object:
        whole = function(self, called, *argument_types, result=result)  # type: ignore[arg-type]
        return whole if called != name else lambda *arguments: 0

    monkeypatch.setattr(Library, "function", one_does_nothing)
    found = kernel_check.faults(library)
    assert found and all(wrong in fault for fault in found)


def test_kernels_that_compute_wrongly_make_place_for_the_next_and_right_ones_are_checked_once(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = built(library.isa)
    looked_at: list[Isa] = []

    def built_for(isa: Isa) -> Path:
        path = tmp_path / f"{isa.value}.so"
        path.write_bytes(isa.value.encode())
        return path

    def faults(one: Library) -> list[str]:
        looked_at.append(one.isa)
        return ["linear layers (bfloat16)"] if one.isa is Isa.AVX512 else []

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_choice, "built", built_for)
    monkeypatch.setattr(kernel_choice, "opened", lambda isa, path: Library(isa, opened(library.isa, place).handle))
    monkeypatch.setattr(kernel_choice, "faults", faults)
    for _ in range(2):
        path, taken = checked((Isa.AVX512, Isa.AVX2))
        assert taken.isa is Isa.AVX2 and "avx2" in path.name
    assert looked_at == [Isa.AVX512, Isa.AVX2, Isa.AVX512]
    assert "avx512-bf16 compute wrongly" in caplog.text and "linear layers (bfloat16)" in caplog.text
    with pytest.raises(CannotBuild, match="none of the kernels"):
        checked((Isa.AVX512,))


@pytest.mark.parametrize("is_cache_writable", [True, False])
def test_kernels_are_checked_anew_on_another_cpu_and_when_another_build_takes_their_place(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cache_writable: bool
) -> None:
    place, num_checks = tmp_path / "avx2-0.so", 0
    place.write_bytes(b"one build")

    def faults(one: Library) -> list[str]:
        nonlocal num_checks
        num_checks += 1
        return []

    cache = tmp_path / "cache"
    if not is_cache_writable:
        cache.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(kernel_choice, "built", lambda isa: place)
    monkeypatch.setattr(kernel_choice, "opened", lambda isa, path: library)
    monkeypatch.setattr(kernel_choice, "faults", faults)
    seen = []
    for change in (
        lambda: None,
        lambda: None,
        lambda: place.write_bytes(b"another build"),
        lambda: monkeypatch.setattr(kernel_choice, "cpu_flags", lambda: AVX512),
        lambda: None,
    ):
        change()
        assert checked((Isa.AVX2,)) == (place, library)
        seen.append(num_checks)
    assert seen == ([1, 1, 2, 3, 3] if is_cache_writable else [1, 2, 3, 4, 5])


def test_where_the_fastest_kernels_cannot_be_had_the_next_are_used_and_that_is_told(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = built(Isa.AVX2)

    def only_avx2(isa: Isa) -> Path:
        if isa is Isa.AVX512:
            raise CannotBuild("no C++ compiler was found")
        return place

    monkeypatch.setattr(kernel_choice, "built", only_avx2)
    path, taken = checked((Isa.AVX512, Isa.AVX2))
    assert (path, taken.isa) == (place, Isa.AVX2)
    (line,) = caplog.messages
    assert "avx2" in line and "no C++ compiler was found" in line
    with pytest.raises(CannotBuild, match="no C"):
        checked((Isa.AVX512,))
