from __future__ import annotations

import logging
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wire.native import CannotBuild, Program, built, cache_directory, ship


@pytest.fixture
def small_source(tmp_path: Path) -> Path:
    """A folder with a source that compiles in a moment."""
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "one.cpp").write_text('extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n')
    return folder


def program(sources: Path) -> Program:
    return Program(sources, name="answer", what="the answer", flags=("-fPIC",))


def build(sources: Path, cache: Path | None) -> Path:
    return built(program(sources), cache=cache)


def lose_compilers(monkeypatch: pytest.MonkeyPatch, empty: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(empty))


def test_a_library_is_built_once_and_again_when_its_source_changes(small_source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = build(small_source, cache)
    written = first.stat().st_mtime_ns
    assert build(small_source, cache) == first and first.stat().st_mtime_ns == written
    source = small_source / "one.cpp"
    source.write_text(source.read_text().replace("42", "43"))
    assert build(small_source, cache) != first


def test_starts_at_the_same_time_build_once(
    small_source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with ThreadPoolExecutor(4) as executor:
        paths = set(executor.map(lambda _: build(small_source, tmp_path / "cache"), range(4)))
    assert len(paths) == 1
    assert sum("the answer built" in message for message in caplog.messages) == 1
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()], "scratch is left behind"


def test_what_a_killed_build_left_is_cleared_by_the_next(small_source: Path, tmp_path: Path) -> None:
    library = build(small_source, tmp_path)
    library.unlink()
    left = tmp_path / f"{library.stem}-dead"
    left.mkdir()
    (left / "half.o").write_text("")
    assert build(small_source, tmp_path) == library
    assert not left.exists()


def test_without_a_compiler_it_says_how_to_get_one(
    small_source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lose_compilers(monkeypatch, tmp_path)
    with pytest.raises(CannotBuild, match="apt install g"):
        build(small_source, tmp_path)


@pytest.mark.parametrize(("script", "told"), [("#!/bin/sh\nexit 3\n", "status 3"), ("no program", "could not be run")])
def test_a_compiler_that_does_not_run_is_told(
    small_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(script)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(CannotBuild, match=told):
        build(small_source, tmp_path / "cache")


def test_a_compile_error_is_told_in_its_own_words(small_source: Path, tmp_path: Path) -> None:
    (small_source / "one.cpp").write_text("int broken( { return undeclared; }\n")
    with pytest.raises(CannotBuild, match=r"one\.cpp:1:.*error"):
        build(small_source, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_cache_that_cannot_be_written_is_told_with_its_cure(small_source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotBuild, match="XDG_CACHE_HOME"):
        build(small_source, tmp_path / "file" / "cache")


def test_the_cache_is_the_users_own(small_source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    path = build(small_source, None)
    assert path.parent == cache_directory() == tmp_path / "mine" / "axil" / "kernels"
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0


def test_what_a_library_depends_on_is_in_its_name(small_source: Path, tmp_path: Path) -> None:
    paths = {
        built(program(small_source), depends_on=[cpu], cache=tmp_path / "cache") for cpu in ("one", "other", "other")
    }
    assert len(paths) == 2


def test_without_a_home_it_says_what_to_set(
    small_source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(CannotBuild, match="set XDG_CACHE_HOME"):
        build(small_source, None)


def test_without_a_compiler_the_library_that_one_made_of_the_same_source_is_used_and_told(
    small_source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier = built(program(small_source), depends_on=["another CPU"], cache=tmp_path / "cache")
    lose_compilers(monkeypatch, tmp_path)
    caplog.set_level(logging.INFO)
    assert build(small_source, tmp_path / "cache") == earlier
    (line,) = caplog.messages
    assert "the answer" in line and str(earlier) in line and "no C++ compiler was found" in line
    source = small_source / "one.cpp"
    source.write_text(source.read_text().replace("42", "43"))
    with pytest.raises(CannotBuild, match="apt install g"):
        build(small_source, tmp_path / "cache")


def test_what_was_shipped_is_used_as_it_is_with_a_compiler_and_without(
    small_source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shipped = ship(program(small_source), small_source.parent / "built")
    caplog.set_level(logging.INFO)
    assert build(small_source, tmp_path / "cache") == shipped
    lose_compilers(monkeypatch, tmp_path)
    assert build(small_source, tmp_path / "cache") == shipped
    assert not caplog.messages and not (tmp_path / "cache").exists()


def test_what_was_shipped_of_another_source_is_left_alone(
    small_source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ship(program(small_source), small_source.parent / "built")
    source = small_source / "one.cpp"
    source.write_text(source.read_text().replace("42", "43"))
    assert build(small_source, tmp_path / "cache").parent == tmp_path / "cache"
    lose_compilers(monkeypatch, tmp_path)
    with pytest.raises(CannotBuild, match="apt install g"):
        build(small_source, tmp_path / "another cache")


def test_what_was_shipped_and_cannot_be_loaded_here_is_told_and_built(
    small_source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shipped = ship(program(small_source), small_source.parent / "built")
    shipped.write_bytes(b"of another machine")
    assert build(small_source, tmp_path / "cache").parent == tmp_path / "cache"
    (line,) = caplog.messages
    assert "can't be loaded" in line and str(shipped) in line
