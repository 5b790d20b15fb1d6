"""Reads a GGUF file: names, the order of rotary rows, and dequantisation into the serving dtype."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import gguf
import numpy as np
import torch
from gguf import GGUFReader, GGUFValueType
from numpy.typing import NDArray

from .kernels.linear import GROUP_COLUMNS
from .model_config import ModelConfig
from .models.decoder import DecoderShape
from .share import Part
from .source import Destination, SourceTensor, row_chunks

_Element = TypeVar("_Element", bound=np.generic)

ROPE_DIVISORS = "rope_freqs.weight"
"""GGUF's form of Llama 3's rope scaling: what each rotary frequency is divided by."""

_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BETWEEN_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class _TensorReader(GGUFReader):
    """A reader that steps over lists: a tokenizer's vocabulary would take longer than all the weights."""

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[NDArray[np.generic]], list[int], list[GGUFValueType]]:
        if GGUFValueType(raw_type) != GGUFValueType.ARRAY:
            return cast(
                "tuple[int, list[NDArray[np.generic]], list[int], list[GGUFValueType]]",
                super()._get_field_parts(orig_offs, raw_type),
            )
        buffer = self.data.data
        kind, count = struct.unpack_from("<IQ", buffer, orig_offs)
        end = orig_offs + 12
        scalar = self.gguf_scalar_to_np.get(GGUFValueType(kind))
        if scalar is not None:
            end += count * np.dtype(scalar).itemsize
        else:
            for _ in range(count):
                end += 8 + struct.unpack_from("<Q", buffer, end)[0]
        return end - orig_offs, [], [], [GGUFValueType.ARRAY]


def gguf_tensors(path: Path, config: ModelConfig, shape: DecoderShape) -> list[SourceTensor]:
    """All tensors of a file; only the header is read.

    Raises:
        ValueError: the file is truncated or no GGUF, or holds another family of models.
    """
    try:
        # Copy on write: nothing is written, but torch wants memory that could be.
        reader = _TensorReader(path, mode="c")
    except (ValueError, IndexError, KeyError, OSError, struct.error) as error:
        raise ValueError(f"{path} is truncated or holds no GGUF: {error}") from error
    field = reader.get_field("general.architecture")
    architecture = None if field is None else field.contents()
    if architecture != shape.gguf_architecture:
        raise ValueError(f"{path} holds a model of {architecture}, the configuration is of {config.family}")
    tensors = []
    for tensor in reader.tensors:
        name = _transformers_name(tensor.name, shape)
        is_rotary = ".attn_q." in tensor.name or ".attn_k." in tensor.name
        is_interleaved = shape.is_gguf_interleaved and is_rotary
        tensors.append(
            SourceTensor(
                name=name,
                shape=tuple(reversed(tensor.shape.tolist())),
                num_bytes=int(tensor.n_bytes),
                write_to=partial(_write, tensor, config.head_dim if is_interleaved else None),
                gguf_type=tensor.tensor_type.name,
            )
        )
    return tensors


def _transformers_name(name: str, shape: DecoderShape) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; an unknown name stays as it is."""
    inside = _INSIDE | _BETWEEN_NORMS if shape.has_output_norms else _INSIDE
    match name.split("."):
        case [stem, kind] if stem in _OUTSIDE:
            return f"{_OUTSIDE[stem]}.{kind}"
        case ["blk", layer, stem, kind] if stem in inside:
            return f"model.layers.{layer}.{inside[stem]}.{kind}"
        case _:
            return name


def _write(tensor: gguf.ReaderTensor, head_dim: int | None, destination: Destination, part: Part) -> None:
    """Write blocks as they are where the destination takes them, else dequantised.

    With `head_dim`, take apart the halves of each head that llama.cpp interleaves.
    """
    kind = tensor.tensor_type.name
    for rows in row_chunks(destination.shape, multiple=head_dim or 1):
        there = part.there(rows)
        if kind in destination.gguf_types:
            blocks = tensor.data[there].view(np.ndarray)
            if part.columns is not None:
                blocks = _block_columns(blocks, part.whole_shape[1], part.columns)
            destination.write_gguf(rows.start, blocks if head_dim is None else _unwoven(blocks, head_dim), kind)
            continue
        values = _dequantised(tensor, there)
        if part.columns is not None:
            values = values[:, part.columns]
        destination.write(rows.start, torch.from_numpy(values if head_dim is None else _unwoven(values, head_dim)))


def _block_columns(blocks: NDArray[np.uint8], num_columns: int, columns: slice) -> NDArray[np.uint8]:
    """The blocks of some columns; a destination that takes blocks has whole ones."""
    assert columns.start % GROUP_COLUMNS == columns.stop % GROUP_COLUMNS == 0, "a part of a block"
    block_bytes = blocks.shape[1] * GROUP_COLUMNS // num_columns
    return blocks[:, columns.start // GROUP_COLUMNS * block_bytes : columns.stop // GROUP_COLUMNS * block_bytes]


def _unwoven(rows: NDArray[_Element], head_dim: int) -> NDArray[_Element]:
    halves = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _dequantised(tensor: gguf.ReaderTensor, rows: slice) -> NDArray[np.float32]:
    # A plain array: slices of a memory map cost more than the arithmetic.
    packed = tensor.data[rows].view(np.ndarray)
    kind = getattr(gguf.quants, tensor.tensor_type.name, None)
    try:
        if kind is None:
            return cast("NDArray[np.float32]", gguf.dequantize(packed, tensor.tensor_type))
        # `gguf.dequantize` takes 16 rows at a time, which costs twice the time of what it computes.
        kind.init_grid()
        return cast("NDArray[np.float32]", kind.dequantize_rows(packed))
    except NotImplementedError as error:
        raise ValueError(f"tensor {tensor.name} has the type {tensor.tensor_type.name}, which can't be read") from error
