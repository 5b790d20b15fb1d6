"""Chooses tokens, and finds the most likely ones, in the C++ kernels. The same definition as `model_runner/sampler.py`.

Knows no grammars: what they forbid has a logit of minus infinity.
"""

# B rows · V vocabulary · N most likely tokens

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wire.sampling import SamplingParams

from .library import Int, Library, Pointer
from .logit_rules import LogitKernels

_ROW = np.dtype(
    {
        "names": ["seed", "position", "top_k", "is_greedy", "temperature", "top_p", "min_p"],
        "formats": ["<i8", "<i8", "<i4", "<i4", "<f4", "<f8", "<f8"],
        "offsets": [0, 8, 16, 20, 24, 32, 40],
        "itemsize": 48,
    }
)
"""`Row` of sampler.cpp."""


class SamplerKernels:
    """The library's sampler."""

    def __init__(self, library: Library) -> None:
        self.logits = LogitKernels(library)
        """What changes logits before a token is chosen."""
        self._sample = library.function("axil_sample", Pointer, Int, Int, Pointer, Pointer)
        self._top = library.function("axil_top_logits", Pointer, *3 * [Int], *3 * [ctypes.c_void_p])

    def choose(
        self, logits_BV: Tensor, params: Sequence[SamplingParams], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """A token for each row of float32 logits, to stand at its position; -1 where a row has no usable ones."""
        logits = logits_BV.contiguous()
        num_rows, vocabulary = logits.shape
        rows = np.array(
            [
                (
                    one.seed or 0,
                    position,
                    min(one.top_k or 0, vocabulary),
                    one.is_greedy,
                    one.temperature,
                    one.top_p,
                    one.min_p,
                )
                for one, position in zip(params, positions.tolist(), strict=True)
            ],
            _ROW,
        )
        token_ids = np.empty(num_rows, np.int64)
        self._sample(logits.data_ptr(), num_rows, vocabulary, rows.ctypes.data, token_ids.ctypes.data)
        return token_ids

    def top(self, logits_BV: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
        """The logarithm of each row's mass [B, 1], its largest logits in order and their ids [B, N]."""
        logits = logits_BV.contiguous()
        num_rows, vocabulary = logits.shape
        num_top = min(num_top, vocabulary)
        log_mass = torch.empty(num_rows, 1)
        values, ids = torch.empty(num_rows, num_top), torch.empty(num_rows, num_top, dtype=torch.int64)
        pointers = (log_mass.data_ptr(), values.data_ptr(), ids.data_ptr())
        self._top(logits.data_ptr(), num_rows, vocabulary, num_top, *pointers)
        return log_mass, values, ids
