import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import runtime.embedded_model
import runtime.model_files
from runtime.errors import BadModel
from runtime.model_files import cache_dir, resolve_model

from .gguf_files import byte_level_tokenizer, write_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "axil"


def model_dir(tmp_path: Path) -> Path:
    path = tmp_path / "my-model"
    path.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (path / name).write_text("{}")
    return path


def test_a_directory_is_taken_as_it_is_and_named_after_itself(tmp_path: Path) -> None:
    path = model_dir(tmp_path)
    files = resolve_model(str(path))
    assert (files.name, files.weights, files.tokenizer_dir) == ("my-model", path, path)
    assert files.model_config == path / "config.json"


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_directory_that_lacks_a_file_is_refused_with_its_name(tmp_path: Path, missing: str) -> None:
    path = model_dir(tmp_path)
    (path / missing).unlink()
    with pytest.raises(BadModel, match=missing.replace("model.", r"\*\.")) as error:
        resolve_model(str(path))
    assert str(path) in str(error.value)


def test_a_directory_with_only_a_gguf_file_says_to_name_that_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    with pytest.raises(BadModel, match=f"did you mean {path}"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("/no/such/place.gguf", "there is no path /no/such/place.gguf"),
        ("no-such-place", "there is no path no-such-place"),
    ],
)
def test_a_path_that_is_not_there_is_named(model: str, why: str) -> None:
    with pytest.raises(BadModel, match=why):
        resolve_model(model)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.touch()
    with pytest.raises(BadModel, match=r"is not a \.gguf file"):
        resolve_model(str(path))


def test_a_gguf_file_is_converted_into_the_cache_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    first = resolve_model(str(path))
    assert (first.name, first.weights) == ("tiny", path)
    assert json.loads(first.model_config.read_text())["hidden_size"] == 32
    assert Tokenizer.from_file(str(first.tokenizer_dir / "tokenizer.json")).encode("the").tokens == ["the"]
    monkeypatch.setattr(runtime.model_files, "_convert", None)
    assert resolve_model(str(path)) == first


def test_a_new_converter_converts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    first = resolve_model(str(path))
    monkeypatch.setattr(runtime.model_files, "CONVERTER_VERSION", 10**6)
    assert resolve_model(str(path)).tokenizer_dir != first.tokenizer_dir


def test_a_conversion_that_fails_leaves_nothing_in_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(BadModel, match=r"disk full.*XDG_CACHE_HOME"):
        resolve_model(str(write_gguf(tmp_path / "tiny.gguf")))
    assert list(cache.iterdir()) == []


def test_when_another_start_was_faster_its_conversion_is_used(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    rename = Path.rename

    def overtaken(draft: Path, folder: Path) -> None:
        rename(draft, folder)
        draft.mkdir()
        raise OSError("directory not empty")

    monkeypatch.setattr(Path, "rename", overtaken)
    files = resolve_model(str(path))
    assert list(cache.iterdir()) == [files.tokenizer_dir]


def test_warnings_of_the_conversion_are_repeated_at_every_start(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tokenizer=byte_level_tokenizer(pre="mystery"))
    for _ in range(2):
        (warning,) = resolve_model(str(path)).warnings
        assert "'mystery'" in warning


def test_the_embedded_model_is_found_and_not_converted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    files = resolve_model(None)
    assert files.name == "SmolLM2-135M-Instruct.Q4_1"
    config = json.loads(files.model_config.read_text())
    assert (config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]) == (576, 30, 49152)
    monkeypatch.delattr(runtime.model_files, "_convert")
    assert resolve_model(None) == files


def test_without_the_embedded_model_s_package_the_error_says_how_to_bring_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.embedded_model, "_PACKAGE", "no_such_package")
    with pytest.raises(BadModel, match="axil fetch-demo"):
        resolve_model(None)


def test_the_cache_is_in_the_home_directory_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_dir() == Path("/home/somebody/.cache/axil")


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_user_without_a_home_directory_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", _no_home)
    with pytest.raises(BadModel, match=r"no home directory.*XDG_CACHE_HOME"):
        cache_dir()


def test_a_path_in_the_home_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(BadModel, match="~nobody-of-this-name/model"):
        resolve_model("~nobody-of-this-name/model")
