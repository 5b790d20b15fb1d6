"""Reads a directory of safetensors: one file, or shards with an index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from safetensors import SafetensorError, safe_open

from .share import Part
from .source import Destination, SourceTensor, row_chunks

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def safetensors_files(directory: Path) -> list[Path]:
    """The files of a checkpoint.

    Raises:
        ValueError: there are none, or the index names one that is not there.
    """
    if (directory / _INDEX).exists():
        try:
            names = set(json.loads((directory / _INDEX).read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"{directory / _INDEX} is no index of safetensors: {error!r}") from error
        files = [directory / name for name in sorted(names)]
    else:
        files = [directory / _SINGLE]
    for file in files:
        if not file.is_file():
            raise ValueError(f"{directory} is no checkpoint: {file.name} is not there")
    return files


def safetensors_tensors(files: Sequence[Path]) -> list[SourceTensor]:
    """All tensors of a checkpoint; only the headers are read.

    Raises:
        ValueError: a file is truncated or no safetensors.
    """
    tensors = []
    for file in files:
        share = file.stat().st_size
        try:
            with safe_open(file, framework="pt") as opened:
                names = list(opened.keys())
                for name in names:
                    shape = tuple(opened.get_slice(name).get_shape())
                    write = partial(_write, file, name)
                    tensors.append(SourceTensor(name=name, shape=shape, num_bytes=share // len(names), write_to=write))
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} is truncated or holds no safetensors: {error}") from error
    return tensors


def _write(file: Path, name: str, destination: Destination, part: Part) -> None:
    """Read the part, and nothing beside it."""
    with safe_open(file, framework="pt") as opened:
        source = opened.get_slice(name)
        for rows in row_chunks(destination.shape):
            there = part.there(rows)
            destination.write(rows.start, source[there] if part.columns is None else source[there, part.columns])
