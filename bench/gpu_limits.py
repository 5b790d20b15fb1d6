"""What a GPU can do at most: reading its memory, multiplying bfloat16; measured, and as its data sheet says.

Knows no model. `Device` is the seam: tests have one that only answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from model_runner.ladder import Ceilings

_COPY_BYTES = 2 << 30
_SIDE = 8192
_REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Memory bandwidth and dense bfloat16 products, as the maker states them."""

    read_gb_s: float
    multiply_tflop_s: float


SHEETS = {
    "H200": Sheet(read_gb_s=4800, multiply_tflop_s=989),
    "H100 PCIe": Sheet(read_gb_s=2000, multiply_tflop_s=756),
    "H100": Sheet(read_gb_s=3350, multiply_tflop_s=989),
    "A100-SXM4-80GB": Sheet(read_gb_s=2039, multiply_tflop_s=312),
    "A100": Sheet(read_gb_s=1555, multiply_tflop_s=312),
    "L40S": Sheet(read_gb_s=864, multiply_tflop_s=362),
    "L4": Sheet(read_gb_s=300, multiply_tflop_s=121),
}
"""By a part of the device's name; the first that fits."""


class Device(Protocol):
    """A GPU as it is measured."""

    @property
    def name(self) -> str:
        """What it calls itself."""

    def read_gb_s(self) -> float:
        """Bytes read or written a second, copying a large tensor."""

    def multiply_tflop_s(self) -> float:
        """Floating point operations a second, in a large product of bfloat16."""


class CudaDevice:
    """The current CUDA device."""

    @property
    def name(self) -> str:
        """What the driver calls it."""
        return torch.cuda.get_device_name()

    def read_gb_s(self) -> float:
        """The best of a few copies; each byte is read and written."""
        source = torch.ones(_COPY_BYTES, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return 2 * _COPY_BYTES / timed_ms(lambda: target.copy_(source), source.device) / 1e6

    def multiply_tflop_s(self) -> float:
        """The best of a few products."""
        one, other = torch.randn(2, _SIDE, _SIDE, dtype=torch.bfloat16, device="cuda")
        return 2 * _SIDE**3 / timed_ms(lambda: one @ other, one.device) / 1e9


def ceilings(device: Device) -> Ceilings:
    """What the ladder is held against."""
    return Ceilings(read_gb_s=device.read_gb_s(), multiply_gflop_s=1000 * device.multiply_tflop_s())


def sheet_of(name: str) -> Sheet | None:
    """What the maker states of a device; None for one that isn't listed."""
    return next((sheet for part, sheet in SHEETS.items() if part in name), None)


def timed_ms(work: Callable[[], object], device: torch.device) -> float:
    """The best of a few runs, each waited for."""
    return 1000 * min(_seconds(work, device)[1:])


def _seconds(work: Callable[[], object], device: torch.device) -> list[float]:
    seconds = []
    for _ in range(_REPEATS + 1):
        _wait(device)
        started = time.perf_counter()
        work()
        _wait(device)
        seconds.append(time.perf_counter() - started)
    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
