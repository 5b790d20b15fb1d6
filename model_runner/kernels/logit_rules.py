"""Changes logits in the C++ kernels: the same definition as `model_runner/logit_rules.py`, bit for bit.

Knows what is to be changed in each row of one call, not why nor for how long.
"""

# B rows · V vocabulary

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .library import Int, Library, Pointer

_CHANGES = np.dtype(
    [
        ("seen", "<u8"),
        ("counts", "<u8"),
        ("num_seen", "<i8"),
        ("biased", "<u8"),
        ("biases", "<u8"),
        ("num_biased", "<i8"),
        ("forbidden", "<u8"),
        ("num_forbidden", "<i8"),
        ("repetition", "<f4"),
        ("frequency", "<f4"),
        ("presence", "<f4"),
    ],
    align=True,
)
"""`Changes` of logit_rules.cpp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitChanges:
    """What is done to one row's logits, in this order: penalties of the ids seen, biases, ids made impossible.

    Ids are int64, each once in its list; `counts` says how often a seen id stands in the output.
    """

    seen_ids: NDArray[np.int64]
    counts: NDArray[np.float32]
    repetition: float
    frequency: float
    presence: float
    biased_ids: NDArray[np.int64]
    biases: NDArray[np.float32]
    forbidden_ids: NDArray[np.int64]


class LogitKernels:
    """The library's changes of logits."""

    def __init__(self, library: Library) -> None:
        self._change = library.function("axil_change_logits", Pointer, Int, Int, Pointer, Pointer)

    def changed(self, logits_BV: Tensor, changes: Mapping[int, LogitChanges]) -> Tensor:
        """A copy of float32 logits with the changes of some of its rows."""
        logits = logits_BV.contiguous()
        num_rows, vocabulary = logits.shape
        rows = np.zeros(num_rows, _CHANGES)
        for b, one in changes.items():
            rows[b] = (
                one.seen_ids.ctypes.data,
                one.counts.ctypes.data,
                len(one.seen_ids),
                one.biased_ids.ctypes.data,
                one.biases.ctypes.data,
                len(one.biased_ids),
                one.forbidden_ids.ctypes.data,
                len(one.forbidden_ids),
                one.repetition,
                one.frequency,
                one.presence,
            )
        out_BV = torch.empty_like(logits)
        self._change(logits.data_ptr(), num_rows, vocabulary, rows.ctypes.data, out_BV.data_ptr())
        return out_BV
