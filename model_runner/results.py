"""A step's tokens on their way to the host: copied behind the step into pinned memory, waited for when asked.

The buffers are a ring: a step's are written again only two steps later, and by then its tokens have been taken.
"""

# B sampled rows

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .device import Fence, make_fence

NUM_IN_FLIGHT = 2
_GROWTH = 256


@dataclass(slots=True)
class Fetched:
    """Tokens that may still be coming. `take` must be called before as many others were begun as are in flight."""

    _token_ids: Tensor
    _is_usable: Tensor
    _fence: Fence

    def is_here(self) -> bool:
        """Whether `take` returns at once."""
        return self._fence.has_passed()

    def take(self) -> tuple[NDArray[np.int32], list[int]]:
        """The token ids, and the rows (by index) without usable logits; waits for the step."""
        self._fence.wait()
        token_ids = self._token_ids.numpy().astype(np.int32)
        return token_ids, np.flatnonzero(~self._is_usable.numpy()).tolist()


@dataclass(slots=True)
class _Buffer:
    token_ids: Tensor
    is_usable: Tensor
    fence: Fence


class Results:
    """The ring."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_host = device.type == "cpu"
        self._buffers = [] if self._is_host else [self._new_buffer(_GROWTH) for _ in range(NUM_IN_FLIGHT)]
        self._turn = 0

    def fetch(self, token_ids_B: Tensor, is_usable_B: Tensor) -> Fetched:
        """Queue the copies of a step; on the CPU they are on the host already."""
        if self._is_host:
            return Fetched(token_ids_B, is_usable_B, make_fence(self._device))
        self._turn = (self._turn + 1) % NUM_IN_FLIGHT
        size = len(token_ids_B)
        if size > len(self._buffers[self._turn].token_ids):
            self._buffers[self._turn] = self._new_buffer(2 * size)
        buffer = self._buffers[self._turn]
        token_ids, is_usable = buffer.token_ids[:size], buffer.is_usable[:size]
        token_ids.copy_(token_ids_B, non_blocking=True)
        is_usable.copy_(is_usable_B, non_blocking=True)
        buffer.fence.set()
        return Fetched(token_ids, is_usable, buffer.fence)

    def _new_buffer(self, size: int) -> _Buffer:
        return _Buffer(
            token_ids=torch.empty(size, dtype=torch.int64, pin_memory=True),
            is_usable=torch.empty(size, dtype=torch.bool, pin_memory=True),
            fence=make_fence(self._device),
        )
