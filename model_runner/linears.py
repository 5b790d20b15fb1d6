"""Makes the linear layers of a model: as torch computes them, or in the C++ kernels, quantised if asked.

Decides how each weight is held. Knows no model and no file.
"""

# N outputs · K columns (inputs)

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .kernels.linear import GROUP_COLUMNS, Activations, Format, Gate, Gguf, Kind, LinearKernels, PackedWeight
from .layers import Linear, make_linear
from .ops import Activation
from .source import Destination, TensorDestination

log = logging.getLogger(__name__)

MadeLinear: TypeAlias = Linear | PackedWeight

_GATES: Mapping[Activation, Gate] = {"silu": Gate.SILU, "gelu_tanh": Gate.GELU_TANH}

HEADS = frozenset({"model.embed_tokens.weight", "lm_head.weight"})
"""What turns ids into vectors and back loses most by 4 bits, so it gets 8."""


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A layer to be made: the names of the tensors that it consists of, one above the other, and its size.

    With a `gate` the first half of the outputs, opened by it, is what the second is multiplied with.
    """

    names: Sequence[str]
    num_outputs: int
    num_columns: int
    has_bias: bool = field(default=False, kw_only=True)
    gate: Activation | None = field(default=None, kw_only=True)


class Linears(Protocol):
    """How a model's linear layers are made."""

    def make(self, wanted: LinearShape) -> MadeLinear:
        """A layer still to be written. With a gate the kernels' give what it lets through, others all their outputs."""


@dataclass(frozen=True, slots=True)
class TorchLinears:
    """Plain tensors of a serving dtype."""

    dtype: torch.dtype

    def make(self, wanted: LinearShape) -> Linear:
        """The same for all."""
        return make_linear(wanted.num_columns, wanted.num_outputs, has_bias=wanted.has_bias, dtype=self.dtype)


class KernelLinears:
    """Weights in the kernels' blocks.

    What a GGUF file holds in blocks that the kernels know stays as it is: that is exact, and read faster. Tokens in
    front of it are in the serving dtype where the CPU multiplies that.
    """

    def __init__(
        self,
        kernels: LinearKernels,
        dtype: torch.dtype,
        *,
        quantize: str = "none",
        stored: Mapping[str, str] | None = None,
    ) -> None:
        """`quantize` is the flag's value, `stored` the GGUF types of tensors."""
        self._kernels = kernels
        self._format = Format.BFLOAT16 if dtype == torch.bfloat16 else Format.FLOAT32
        self._quantize = quantize
        self._stored = stored or {}
        has_pairs = dtype == torch.bfloat16 and kernels.has_bfloat16_products
        self._unquantised = Activations.BFLOAT16 if has_pairs else Activations.AS_THEY_ARE
        self.kinds: set[Kind] = set()
        """Of all layers so far."""
        self.num_bytes = 0
        """Of all layers so far."""

    def make(self, wanted: LinearShape) -> PackedWeight:
        """Held as the flags say; what can't be is logged."""
        kind = self._kind(wanted.names)
        obstacle = kind.obstacle(wanted.num_columns)
        if obstacle is not None:
            if self._quantize != "none":
                log.warning("not quantised, so it stays in float32 tensor=%s reason=%r", wanted.names[0], obstacle)
            kind = Kind(format=Format.FLOAT32)
        gate = None if wanted.gate is None else _GATES[wanted.gate]
        num_outputs = wanted.num_outputs // (1 if gate is None else 2)
        weight = self._kernels.make(num_outputs, wanted.num_columns, kind, has_bias=wanted.has_bias, gate=gate)
        self.kinds.add(kind)
        self.num_bytes += weight.memory.nbytes
        return weight

    def _kind(self, names: Sequence[str]) -> Kind:
        stored = {_BLOCKS[self._stored[name]].format if self._stored.get(name) in _BLOCKS else None for name in names}
        held = stored.pop() if len(stored) == 1 else None
        if self._quantize == "none":
            if held is None:
                return Kind(format=self._format)
            return Kind(format=held, group_columns=GROUP_COLUMNS, activations=self._unquantised)
        if held is Format.INT4 or (self._quantize == "int4" and HEADS.isdisjoint(names)):
            return Kind(format=Format.INT4, group_columns=GROUP_COLUMNS, activations=Activations.BYTES)
        return Kind(format=Format.INT8, activations=Activations.BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """A part of a packed weight."""

    weight: PackedWeight
    first: int
    half: int | None
    shape: tuple[int, ...]

    @property
    def gguf_types(self) -> frozenset[str]:
        """Those that the weight holds exactly."""
        kind = self.weight.kind
        is_grouped = kind.group_columns == GROUP_COLUMNS
        return frozenset(name for name, gguf in _BLOCKS.items() if is_grouped and gguf.format is kind.format)

    def write(self, first: int, rows: Tensor) -> None:
        """Pack rows."""
        self.weight.write(self.first + first, rows, half=self.half)

    def write_gguf(self, first: int, blocks: NDArray[np.uint8], gguf_type: str) -> None:
        """Pack blocks as they are."""
        self.weight.write_gguf(self.first + first, blocks, _BLOCKS[gguf_type], half=self.half)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BiasPart:
    """A part of a packed weight's bias."""

    weight: PackedWeight
    first: int
    half: int | None
    shape: tuple[int, ...]

    @property
    def gguf_types(self) -> frozenset[str]:
        """None."""
        return frozenset()

    def write(self, first: int, rows: Tensor) -> None:
        """Store them."""
        self.weight.write_bias(self.first + first, rows, half=self.half)

    def write_gguf(self, first: int, blocks: NDArray[np.uint8], gguf_type: str) -> None:
        """Never called."""
        raise AssertionError("a bias holds no blocks")


_BLOCKS = {gguf.name: gguf for gguf in Gguf}


def parts(linear: MadeLinear, num_rows: Sequence[int]) -> Iterator[tuple[Destination, Destination | None]]:
    """Where the tensors of a fused layer go, one above the other: weight and bias of each."""
    first = 0
    for index, count in enumerate(num_rows):
        if isinstance(linear, Linear):
            part = slice(first, first + count)
            bias = None if linear.bias is None else TensorDestination(linear.bias[part])
            yield TensorDestination(linear.weight[part]), bias
        else:
            row, half = (0, index) if linear.is_gated else (first, None)
            weight = _Rows(weight=linear, first=row, half=half, shape=(count, linear.num_columns))
            bias_part = _BiasPart(weight=linear, first=row, half=half, shape=(count,))
            yield weight, bias_part if linear.has_bias else None
        first += count
