"""Finds the files of the model to serve, and converts what a GGUF file says of itself into the usual JSON files.

The converted files are kept in the user's cache, under a hash of the GGUF header, so that only the first start pays for
them. Reads no weights and knows no model families: the runner says which of them it can run.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .embedded_model import find_embedded_model
from .errors import BadModel
from .gguf_config import config_from_gguf
from .gguf_header import header_digest, read_header
from .model_hub import find_hub_model, is_hub_id

CONVERTER_VERSION = 2
"""To be raised with every change of what the conversion writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where everything about one model lies.

    `tokenizer_dir` holds `config.json`, `tokenizer.json` and perhaps `tokenizer_config.json`. `warnings` are for the
    person who serves the model.
    """

    name: str
    weights: Path
    model_config: Path
    tokenizer_dir: Path
    warnings: tuple[str, ...] = ()


def resolve_model(model: str | None) -> ModelFiles:
    """Find the files of `model`: a `.gguf` file, a directory or a name on the hub; None is the embedded model.

    Raises:
        BadModel: something is missing or unknown; the message has the path.
    """
    path = find_embedded_model() if model is None else _expanded(model)
    if path.is_dir():
        return _from_directory(path.resolve(), path.resolve().name)
    if path.is_file():
        if path.suffix != ".gguf":
            raise BadModel(f"{path} is not a .gguf file; give a .gguf file or a directory with config.json")
        return _from_gguf(path.resolve())
    if model is not None and is_hub_id(model):
        return _from_directory(find_hub_model(model), model)
    raise BadModel(f"there is no path {path}; give a .gguf file or a directory with config.json")


def tokenizer_files(model: str | None) -> tuple[Path, str]:
    """The directory with a model's tokenizer, and the model's name; a directory without weights will do.

    Raises:
        BadModel: as `resolve_model`.
    """
    if model is not None and (Path(model) / "tokenizer.json").is_file():
        return Path(model), Path(model).resolve().name
    files = resolve_model(model)
    return files.tokenizer_dir, files.name


def _expanded(model: str) -> Path:
    try:
        return Path(model).expanduser()
    except RuntimeError as error:
        raise BadModel(f"{model} names a home directory that is not known: {error} Give the whole path.") from error


def _from_directory(path: Path, name: str) -> ModelFiles:
    if not (path / "config.json").is_file():
        ggufs = sorted(path.glob("*.gguf"))
        hint = f"; did you mean {ggufs[0]}?" if ggufs else "; is it a model in the form that transformers writes?"
        raise BadModel(f"{path} has no config.json{hint}")
    if not (path / "tokenizer.json").is_file():
        raise BadModel(f"{path} has no tokenizer.json; save the model's fast tokenizer there")
    if not any(path.glob("*.safetensors")):
        raise BadModel(f"{path} has no *.safetensors file; save the weights in that form")
    return ModelFiles(name=name, weights=path, model_config=path / "config.json", tokenizer_dir=path)


def _from_gguf(path: Path) -> ModelFiles:
    folder = cache_dir() / f"{header_digest(path)[:32]}-{CONVERTER_VERSION}"
    if not folder.is_dir():
        try:
            _convert(path, folder)
        except OSError as error:
            raise BadModel(
                f"can't keep the converted tokenizer of {path}: {error}. Set XDG_CACHE_HOME to a directory with room."
            ) from error
    warnings = json.loads((folder / "warnings.json").read_text("utf-8"))
    return ModelFiles(
        name=path.stem,
        weights=path,
        model_config=folder / "config.json",
        tokenizer_dir=folder,
        warnings=tuple(warnings),
    )


def cache_dir() -> Path:
    """Where this user's converted files are kept.

    Raises:
        BadModel: neither the environment nor the system's user list knows a place.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "axil"
    except RuntimeError as error:
        raise BadModel(
            "this user has no home directory to keep the converted tokenizer in. Set XDG_CACHE_HOME to a directory "
            "with room."
        ) from error


def _convert(path: Path, folder: Path) -> None:
    """Write the JSON files of the GGUF file at `path`, so that `folder` appears whole or not at all."""
    from .gguf_tokenizer import tokenizer_config_from_gguf, tokenizer_from_gguf  # 0.1 s, and only the first time

    header = read_header(path)
    config = config_from_gguf(header, path)
    warnings: list[str] = []
    tokenizer = tokenizer_from_gguf(header.metadata, warnings)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=folder.parent))
    try:
        tokenizer.save(str(draft / "tokenizer.json"))
        for name, content in (
            ("config.json", config),
            ("tokenizer_config.json", tokenizer_config_from_gguf(header.metadata)),
            ("warnings.json", warnings),
        ):
            (draft / name).write_text(json.dumps(content, indent=1, ensure_ascii=False), "utf-8")
        draft.chmod(0o755)
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another start was faster, with the same content
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
