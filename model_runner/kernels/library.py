"""The compiled kernels in this process: loaded once, called through ctypes with typed signatures. Knows no model."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .build import CannotBuild
from .cpu import Isa

log = logging.getLogger(__name__)

HUGE_PAGE_BYTES = 2 << 20

CType: TypeAlias = "type[ctypes.c_void_p | ctypes.c_int64 | ctypes.c_int32 | ctypes.c_float | ctypes.c_double]"
Pointer = ctypes.c_void_p
"""A tensor's `data_ptr()`, or None."""
Int = ctypes.c_int64
Float = ctypes.c_float


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded library; `isa` is what it was compiled for."""

    isa: Isa
    handle: ctypes.CDLL

    def function(self, name: str, *argument_types: CType, result: CType | None = None) -> Callable[..., Any]:
        """The C function of a name, with the types of its arguments."""
        found = getattr(self.handle, name)
        found.argtypes = argument_types
        found.restype = result
        return found  # type: ignore[no-any-return]

    @property
    def has_bfloat16_products(self) -> bool:
        """Whether activations in front of bfloat16 weights are bfloat16 too; else they are float32."""
        return self.isa is not Isa.AVX2

    def set_threads(self, count: int) -> None:
        """How many threads the kernels use, the caller's included."""
        self.function("axil_set_threads", ctypes.c_int32)(count)


def opened(isa: Isa, path: Path) -> Library:
    """Load a library that was built.

    Raises:
        CannotBuild: the file can't be loaded, or Linux refuses the registers that it needs.
    """
    try:
        library = Library(isa, ctypes.CDLL(str(path)))
    except OSError as error:
        raise CannotBuild(f"{path} can't be loaded ({error}); remove it") from error
    refused = library.function("axil_prepare", result=ctypes.c_int32)()
    if refused:
        raise CannotBuild(f"the system does not let this process use {isa.value} ({os.strerror(refused)})")
    return library


def huge_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros in huge pages where the system has them (half as fast again from memory); taken when touched.

    Raises:
        OSError: the system refuses to reserve that much.
    """
    num_elements = 1
    for extent in shape:
        num_elements *= extent
    num_bytes = max(1, num_elements) * dtype.itemsize
    memory = mmap.mmap(-1, -(-num_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE)
    if num_bytes >= HUGE_PAGE_BYTES:
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError as error:
            log.debug("no huge pages: %s", error)
    return torch.frombuffer(memory, dtype=dtype, count=num_elements).view(shape)
