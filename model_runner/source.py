"""One tensor of a checkpoint, whatever the format of its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

CHUNK_ELEMENTS = 1 << 17
"""Elements converted at a time: no whole tensor is held beside its destination, and a piece fits a core's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTensor:
    """A tensor under its name in a transformers checkpoint; `write_to` converts it into place."""

    name: str
    shape: tuple[int, ...]
    num_bytes: int
    write_to: Callable[[Tensor], None]


def row_chunks(shape: tuple[int, ...], *, multiple: int = 1) -> Iterator[slice]:
    """Cut the first dimension into pieces of about `CHUNK_ELEMENTS`, of a multiple of `multiple` rows."""
    num_rows = shape[0]
    row_elements = 1
    for extent in shape[1:]:
        row_elements *= extent
    step = max(1, CHUNK_ELEMENTS // row_elements // multiple) * multiple
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))
