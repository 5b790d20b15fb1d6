"""Linear layers in the C++ kernels: weights packed as one thread reads them, and what is computed with them.

A token's outputs have the same bits alone and in any batch. Knows no model.
"""

# T tokens in batch · N outputs · K columns (inputs)

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .library import Int, Library, Pointer, huge_tensor

GROUP_COLUMNS = 32
"""Columns that share a scale in 4 bits, and in GGUF's blocks."""

_MOST_SUMMED = 1 << 17
"""Products of bytes that 32 bits hold the sum of."""

_SLAB_BYTES = 32 << 20
_FLAG = ctypes.c_int32


class Format(enum.IntEnum):
    """How weights are stored; the values are the C code's."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3


class Gguf(enum.IntEnum):
    """GGUF's types whose blocks are taken as they are; the values are GGUF's."""

    Q4_0 = 2
    Q4_1 = 3
    Q8_0 = 8

    @property
    def format(self) -> Format:
        """What holds them exactly."""
        return Format.INT8 if self is Gguf.Q8_0 else Format.INT4


class Gate(enum.IntEnum):
    """What opens a layer's outputs; the values are the C code's."""

    SILU = 1
    GELU_TANH = 2


class Activations(enum.IntEnum):
    """What tokens are multiplied as in front of weights of few bits; the values are the C code's."""

    AS_THEY_ARE = 0
    """In float32, which the weights are widened to as they are used."""
    BYTES = 1
    """Rounded to 8 bits: in front of 4 each group of columns to its own scale, in front of 8 all columns to one.

    Before 8 bits weights and tokens are rotated by Hadamard matrices, so that no column is much larger than the rest.
    """
    BFLOAT16 = 2
    """Rounded to it, where the CPU multiplies it; the weights' whole numbers become it exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a layer's weights are held and multiplied.

    `group_columns` share a scale (None: all columns of an output, which only 8 bits in front of bytes have).
    """

    format: Format
    group_columns: int | None = None
    activations: Activations = Activations.AS_THEY_ARE

    @property
    def name(self) -> str:
        """How logs and fingerprints call it: `int8/32` has a scale for 32 columns, `-a8` tokens in bytes too.

        `-a16` has them in bfloat16.
        """
        group = f"/{self.group_columns}" if self.group_columns else ""
        tokens = {Activations.BYTES: "-a8", Activations.BFLOAT16: "-a16"}.get(self.activations, "")
        return f"{self.format.name.lower()}{group}{tokens}"

    def obstacle(self, num_columns: int) -> str | None:
        """Why a layer of so many inputs can't be held like this, or None."""
        multiple = {Format.FLOAT32: 1, Format.BFLOAT16: 2}.get(self.format, GROUP_COLUMNS)
        if num_columns % multiple != 0:
            return f"{num_columns} inputs are no multiple of {multiple}"
        if self.activations is Activations.BYTES and self.group_columns is None and num_columns > _MOST_SUMMED:
            return f"{num_columns} inputs are more than {_MOST_SUMMED}"
        return None


ALL_KINDS = (
    Kind(format=Format.FLOAT32),
    Kind(format=Format.BFLOAT16),
    Kind(format=Format.INT8, group_columns=32),
    Kind(format=Format.INT4, group_columns=32),
    Kind(format=Format.INT8, activations=Activations.BYTES),
    Kind(format=Format.INT4, group_columns=32, activations=Activations.BYTES),
    Kind(format=Format.INT8, group_columns=32, activations=Activations.BFLOAT16),
    Kind(format=Format.INT4, group_columns=32, activations=Activations.BFLOAT16),
)
"""Those that models are held in, on one CPU or another."""


class _Weight(ctypes.Structure):
    """`Weight` of linear.h."""

    _fields_ = (
        ("format", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("gate", ctypes.c_int32),
        ("activations", ctypes.c_int32),
        ("has_bias", ctypes.c_int32),
        ("num_outputs", ctypes.c_int64),
        ("num_columns", ctypes.c_int64),
        ("data", ctypes.c_void_p),
    )


class LinearKernels:
    """The library's linear layers, and the memory that holds their weights: slabs of huge pages, never given back."""

    def __init__(self, library: Library) -> None:
        function = library.function
        self.has_bfloat16_products = library.has_bfloat16_products
        """Whether tokens in front of bfloat16 weights are rounded to it."""
        self._bytes = function("axil_weight_bytes", Pointer, result=ctypes.c_int64)
        self.write_rows = function("axil_write_rows", Pointer, Int, _FLAG, Int, Pointer)
        self.write_bias = function("axil_write_bias", Pointer, Int, _FLAG, Int, Pointer)
        self.write_gguf = function("axil_write_gguf", Pointer, Int, _FLAG, Int, Pointer, _FLAG)
        self.read_rows = function("axil_read_rows", Pointer, Pointer, Int, Pointer, _FLAG)
        self.apply: Callable[..., Any] = function("axil_linear", Pointer, Pointer, _FLAG, Int, Pointer)
        self._slab = torch.empty(0, dtype=torch.uint8)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Those that are multiplied on this CPU."""
        if self.has_bfloat16_products:
            return ALL_KINDS
        return tuple(kind for kind in ALL_KINDS if kind.activations is not Activations.BFLOAT16)

    def make(
        self, num_outputs: int, num_columns: int, kind: Kind, *, has_bias: bool = False, gate: Gate | None = None
    ) -> PackedWeight:
        """A weight still to be written; with a `gate`, which opens them, `num_outputs` counts the outputs behind it."""
        assert kind.obstacle(num_columns) is None, "the caller has asked"
        assert kind in self.kinds, "the caller knows the CPU"
        layout = _Weight(
            format=kind.format,
            group=kind.group_columns or num_columns,
            gate=gate or 0,
            activations=kind.activations,
            has_bias=has_bias,
            num_outputs=num_outputs,
            num_columns=num_columns,
        )
        memory = self._take(self._bytes(ctypes.addressof(layout)))
        layout.data = memory.data_ptr()
        return PackedWeight(kernels=self, kind=kind, memory=memory, layout=layout)

    def _take(self, num_bytes: int) -> Tensor:
        padded = -(-num_bytes // 64) * 64
        if padded > len(self._slab):
            self._slab = huge_tensor((max(_SLAB_BYTES, padded),), torch.uint8)
        memory, self._slab = self._slab[:num_bytes], self._slab[padded:]
        return memory


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """A weight in the kernels' blocks; `memory` holds it."""

    kernels: LinearKernels
    kind: Kind
    memory: Tensor
    layout: _Weight

    @property
    def num_outputs(self) -> int:
        """Numbers that a token becomes."""
        return int(self.layout.num_outputs)

    @property
    def num_columns(self) -> int:
        """Numbers that a token consists of."""
        return int(self.layout.num_columns)

    @property
    def is_gated(self) -> bool:
        """Whether a gate of as many outputs, written as their first half, opens them."""
        return bool(self.layout.gate)

    @property
    def has_bias(self) -> bool:
        """Whether something is added to the outputs."""
        return bool(self.layout.has_bias)

    def write(self, first: int, rows_NK: Tensor, *, half: int | None = None) -> None:
        """Store rows of any float type from output `first` on; `half` 0 is the gate, 1 what it opens."""
        rows = rows_NK.to(torch.float32).contiguous()
        self.kernels.write_rows(self._address, first, -1 if half is None else half, len(rows), rows.data_ptr())

    def write_gguf(self, first: int, blocks: NDArray[np.uint8], gguf: Gguf, *, half: int | None = None) -> None:
        """Store rows given as a GGUF file's blocks [N, bytes], which the format holds exactly."""
        assert gguf.format == self.kind.format and self.layout.group == GROUP_COLUMNS, "other blocks"
        rows = np.ascontiguousarray(blocks)
        self.kernels.write_gguf(
            self._address, first, -1 if half is None else half, len(rows), rows.ctypes.data, int(gguf)
        )

    def write_bias(self, first: int, bias_N: Tensor, *, half: int | None = None) -> None:
        """Store what is added to the outputs, which `make` was told of."""
        assert self.layout.has_bias, "this one has none"
        bias = bias_N.to(torch.float32).contiguous()
        self.kernels.write_bias(self._address, first, -1 if half is None else half, len(bias), bias.data_ptr())

    def rows(self, ids_T: Tensor, dtype: torch.dtype) -> Tensor:
        """[T, K]: the weights of the outputs `ids_T` (int64), as an embedding looks them up."""
        out_TK = torch.empty(len(ids_T), self.num_columns, dtype=dtype)
        ids = ids_T.contiguous()
        self.kernels.read_rows(self._address, ids.data_ptr(), len(ids), out_TK.data_ptr(), dtype == torch.bfloat16)
        return out_TK

    def __call__(self, x_TK: Tensor) -> Tensor:
        """[T, N] in float32, of tokens in float32 or bfloat16."""
        x, out_TN = x_TK.contiguous(), torch.empty(len(x_TK), self.num_outputs)
        self.kernels.apply(self._address, x.data_ptr(), x.dtype == torch.bfloat16, len(x), out_TN.data_ptr())
        return out_TN

    @property
    def _address(self) -> int:
        return ctypes.addressof(self.layout)
