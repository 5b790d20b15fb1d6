"""From host arrays to the device without waiting for it: a ring of pinned buffers, each fenced until it may be reused.

A copy from pinned memory is queued and runs later. The memory must stay as it was until then, which is what the ring
and its fences are for: whoever wrote over it earlier would change what a step that runs already has been given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .device import Fence, make_fence

_NUM_SLOTS = 4
_FIRST_BYTES = 1 << 16
_ALIGNMENT = 16


@dataclass(slots=True)
class _Slot:
    """One step's memory, as numpy sees it. `outgrown` is what was too small, kept until its copies have run."""

    buffer: NDArray[np.uint8]
    fence: Fence
    used_bytes: int = 0
    outgrown: list[NDArray[np.uint8]] = field(default_factory=list)


class Staging:
    """Hands out copies of host arrays, on the host in pinned memory or on the device."""

    def __init__(self, device: torch.device, *, new_fence: Callable[[], Fence] | None = None) -> None:
        self._device = device
        self._is_pinned = device.type == "cuda"
        self._slots = [
            _Slot(self._new_buffer(_FIRST_BYTES), make_fence(device) if new_fence is None else new_fence())
            for _ in range(_NUM_SLOTS)
        ]
        self._turn = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Take the next slot; what is queued inside, calls of others on the copies included, is fenced at the end."""
        self._turn = (self._turn + 1) % _NUM_SLOTS
        slot = self._slots[self._turn]
        slot.fence.wait()
        slot.used_bytes = 0
        slot.outgrown.clear()
        try:
            yield
        finally:
            slot.fence.set()

    def host(self, array: NDArray[Any]) -> Tensor:
        """A copy of a column in pinned memory, to be read until this slot's turn comes again."""
        slot = self._slots[self._turn]
        start = -(-slot.used_bytes // _ALIGNMENT) * _ALIGNMENT
        if start + array.nbytes > len(slot.buffer):
            slot.outgrown.append(slot.buffer)
            slot.buffer = self._new_buffer(2 * (len(slot.buffer) + array.nbytes))
            start = 0
        slot.used_bytes = start + array.nbytes
        # Copied by numpy, which takes a microsecond for what takes torch twenty.
        copy = slot.buffer[start : slot.used_bytes].view(array.dtype)
        copy[:] = array
        return torch.from_numpy(copy)

    def device(self, array: NDArray[Any]) -> Tensor:
        """A copy on the device, queued, to be kept as long as one likes."""
        if self._device.type == "cpu":
            return torch.from_numpy(array.copy())
        return self.host(array).to(self._device, non_blocking=True)

    def _new_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        buffer: NDArray[np.uint8] = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._is_pinned).numpy()
        return buffer
