from __future__ import annotations

import logging
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from model_runner.kernels import build, library
from model_runner.kernels.build import CannotBuild, built, cache_directory
from model_runner.kernels.cpu import Isa, best_isa

AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni"}


@pytest.fixture
def small_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A source that compiles in a moment, in place of the kernels."""
    source = tmp_path / "csrc" / "one.cpp"
    source.parent.mkdir()
    source.write_text('extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n')
    monkeypatch.setattr(build, "SOURCES", source.parent)
    return source


def test_the_best_instruction_set_that_the_cpu_has_whole_is_taken() -> None:
    assert best_isa(AVX512) is Isa.AVX512
    assert best_isa(AVX512 - {"avx512_bf16"}) is Isa.AVX2
    assert best_isa(AVX2 - {"fma"}) is None
    assert best_isa(frozenset()) is None


def test_a_library_is_built_once_and_again_when_its_source_changes(small_source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = built(Isa.AVX2, cache=cache)
    written = first.stat().st_mtime_ns
    assert built(Isa.AVX2, cache=cache) == first and first.stat().st_mtime_ns == written
    small_source.write_text(small_source.read_text().replace("42", "43"))
    assert built(Isa.AVX2, cache=cache) != first


def test_starts_at_the_same_time_build_once(
    small_source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with ThreadPoolExecutor(4) as executor:
        paths = set(executor.map(lambda _: built(Isa.AVX2, cache=tmp_path / "cache"), range(4)))
    assert len(paths) == 1
    assert sum("kernels built" in message for message in caplog.messages) == 1
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()], "scratch is left behind"


def test_without_a_compiler_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotBuild, match="apt install g"):
        built(Isa.AVX2, cache=tmp_path)


def test_a_compile_error_is_told_in_its_own_words(small_source: Path, tmp_path: Path) -> None:
    small_source.write_text("int broken( { return undeclared; }\n")
    with pytest.raises(CannotBuild, match=r"one\.cpp:1:.*error"):
        built(Isa.AVX2, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_cache_that_cannot_be_written_is_told_with_its_cure(small_source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotBuild, match="XDG_CACHE_HOME"):
        built(Isa.AVX2, cache=tmp_path / "file" / "cache")


def test_the_cache_is_the_users_own(small_source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    path = built(Isa.AVX2)
    assert path.parent == cache_directory() == tmp_path / "mine" / "axil" / "kernels"
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0


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
