"""One tensor of a checkpoint, whatever the format of its file, and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .share import Part

CHUNK_ELEMENTS = 1 << 17
"""Elements converted at a time: no whole tensor is held beside its destination, and a piece fits a core's cache."""


class Destination(Protocol):
    """Where a tensor's rows (of one with one dimension: its elements) are written, in pieces."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""

    @property
    def gguf_types(self) -> frozenset[str]:
        """GGUF's types whose blocks `write_gguf` takes."""

    def write(self, first: int, rows: Tensor) -> None:
        """Store rows of any float type from `first` on."""

    def write_gguf(self, first: int, blocks: NDArray[np.uint8], gguf_type: str) -> None:
        """Store rows as a GGUF file holds them: [rows, bytes]."""


@dataclass(frozen=True, slots=True)
class TensorDestination:
    """A tensor, or a view of a part of one."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's."""
        return tuple(self.tensor.shape)

    @property
    def gguf_types(self) -> frozenset[str]:
        """None."""
        return frozenset()

    def write(self, first: int, rows: Tensor) -> None:
        """Convert into place."""
        self.tensor[first : first + len(rows)].copy_(rows)

    def write_gguf(self, first: int, blocks: NDArray[np.uint8], gguf_type: str) -> None:
        """Never called."""
        raise AssertionError("a tensor holds no blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTensor:
    """A tensor under its name in a transformers checkpoint; `write_to` converts a part of it into place.

    `gguf_type` is what a GGUF file holds it in; None elsewhere.
    """

    name: str
    shape: tuple[int, ...]
    num_bytes: int
    write_to: Callable[[Destination, Part], None]
    gguf_type: str | None = None


def row_chunks(shape: tuple[int, ...], *, multiple: int = 1) -> Iterator[slice]:
    """Cut the first dimension into pieces of about `CHUNK_ELEMENTS`, of a multiple of `multiple` rows."""
    num_rows = shape[0]
    row_elements = 1
    for extent in shape[1:]:
        row_elements *= extent
    step = max(1, CHUNK_ELEMENTS // row_elements // multiple) * multiple
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))
