"""The decoder that all families share. A family says in a `DecoderShape` what it changes.

Knows nothing of pages and rows: attention over the cache is the backend's.
"""

# T tokens in batch · N query heads · K kv heads · H head dim · D model dim · V vocabulary

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from model_runner.attention.backend import AttentionBackend
from model_runner.kernels.linear import PackedWeight
from model_runner.layers import AnyLinear, Linear, RMSNorm, Rotary, make_norm, make_rotary, packed
from model_runner.linears import Linears, LinearShape, TorchLinears, parts
from model_runner.model_config import ModelConfig
from model_runner.ops import Activation, Heads, Ops, TorchOps
from model_runner.ranks import Alone, Ranks
from model_runner.share import Share
from model_runner.source import Destination, TensorDestination

from .layer import Layer
from .whole import WholeLayers, whole_layers

Handle = TypeVar("Handle")

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
_OUTPUT, _DOWN = "self_attn.o_proj", "mlp.down_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """What a family changes about the shared decoder.

    `gguf_architecture`: the family's name in GGUF files. `is_gguf_interleaved`: these hold the rows of q and k with the
    two halves of a head interleaved. `has_output_norms`: what attention and MLP give is normalised before it is added.
    `is_norm_centred`: safetensors hold the weights of norms less 1, and they are kept in float32.
    `is_embedding_scaled`: by the root of the model dimension.
    """

    gguf_architecture: str
    activation: Activation = "silu"
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_head_norms: bool = False
    has_output_norms: bool = False
    is_norm_centred: bool = False
    is_embedding_scaled: bool = False
    is_gguf_interleaved: bool = False


@dataclass(slots=True, kw_only=True)
class Decoder:
    """A decoder-only transformer; the weight of `head` is the embedding itself where they are tied.

    Of a tensor-parallel group's it is one rank's share: `config` counts its heads and inner columns, embedding and head
    hold its token ids. What linears sum over a part of their inputs is then summed over `ranks`.
    `dtype` is that of norms and KV, and of weights that aren't quantised. `embedding` is None where the kernels' head
    holds it. `local_rotary` is that of the layers with a sliding window.
    """

    config: ModelConfig
    share: Share
    ranks: Ranks
    shape: DecoderShape
    dtype: torch.dtype
    embedding: Tensor | None
    layers: tuple[Layer, ...]
    norm: RMSNorm
    head: AnyLinear
    rotary: Rotary
    local_rotary: Rotary
    ops: Ops
    whole: tuple[AttentionBackend[Any], WholeLayers | None] | None = None
    """What runs all layers at once over the pool of the backend seen last."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""
        return self.config.vocabulary

    def forward(
        self, token_ids_T: Tensor, positions_T: Tensor, backend: AttentionBackend[Handle], handle: Handle
    ) -> Tensor:
        """Hidden states [T, D] before the last norm; stores the tokens' K and V."""
        ops = self.ops
        hidden_TD = self._embedded(token_ids_T).to(ops.activations(self.dtype))
        if self.shape.is_embedding_scaled:
            # In the serving dtype: transformers rounds the factor too.
            hidden_TD = hidden_TD * torch.tensor(self.config.hidden_size**0.5, dtype=self.dtype).item()
        angles = local_angles = ops.angles(self.rotary, positions_T)
        if self.local_rotary is not self.rotary:
            local_angles = ops.angles(self.local_rotary, positions_T)
        whole = self._whole(backend)
        if whole is not None:
            return whole(hidden_TD, (angles, local_angles), handle)
        out_TNH = hidden_TD.new_empty(len(token_ids_T), self.config.num_heads, self.config.head_dim)
        mlp_TD: Tensor | None = None  # of the layer before, still to be added
        for index, layer in enumerate(self.layers):
            own_angles = angles if self.config.windows[index] is None else local_angles
            qkv_TX = layer.qkv(ops.add_norm(hidden_TD, mlp_TD, layer.input_norm))
            q_TNH, k_TKH, v_TKH = ops.rotated_heads(qkv_TX, layer.heads, own_angles)
            backend.forward(index, q_TNH, k_TKH, v_TKH, handle, out_TNH)
            attended_TD = self.ranks.summed(layer.output(out_TNH.flatten(1)))
            if layer.attention_output_norm is not None:
                attended_TD = ops.add_norm(attended_TD, None, layer.attention_output_norm)
            inner_TX = self._gated(layer.gate_up, ops.add_norm(hidden_TD, attended_TD, layer.mlp_norm))
            mlp_TD = self.ranks.summed(layer.down(inner_TX))
            if layer.mlp_output_norm is not None:
                mlp_TD = ops.add_norm(mlp_TD, None, layer.mlp_output_norm)
        return hidden_TD if mlp_TD is None else hidden_TD.add_(mlp_TD)

    def logits(self, hidden_BD: Tensor) -> Tensor:
        """Logits [B, V] of the given hidden states, in float32; zeros on ranks behind the first, which chooses."""
        own_BX = self.head(self.ops.add_norm(hidden_BD, None, self.norm)).float()
        cap = self.config.final_softcap
        return self.ranks.joined_on_first(own_BX if cap is None else self.ops.softcapped(own_BX, cap), self.vocabulary)

    def _gated(self, gate_up: AnyLinear, x_TD: Tensor) -> Tensor:
        gate_up_TX = gate_up(x_TD)
        if isinstance(gate_up, PackedWeight) and gate_up.is_gated:
            return gate_up_TX
        return self.ops.gated(gate_up_TX, self.shape.activation)

    def _whole(self, backend: AttentionBackend[Any]) -> WholeLayers | None:
        """All layers in one call, where ops and attention have that."""
        if self.whole is None or self.whole[0] is not backend:
            self.whole = (backend, whole_layers(self.layers, self.config, self.ops, backend))
        return self.whole[1]

    def _embedded(self, token_ids_T: Tensor) -> Tensor:
        if self.ranks.num_ranks == 1:
            return self._rows(token_ids_T)
        own, ids_T = self.share.vocabulary, token_ids_T - self.share.vocabulary.start
        is_own_T = (ids_T >= 0) & (ids_T < len(own))
        rows_TD = self._rows(ids_T.clamp_(0, max(len(own) - 1, 0)))
        # Zeros but from one rank: the sum is exact.
        return self.ranks.summed(rows_TD.masked_fill_(~is_own_T[:, None], 0))

    def _rows(self, token_ids_T: Tensor) -> Tensor:
        if self.embedding is not None:
            return F.embedding(token_ids_T, self.embedding)
        assert isinstance(self.head, PackedWeight), "only the kernels' head is an embedding too"
        return self.head.rows(token_ids_T, torch.float32)

    def pack(self, form: Callable[[Linear], AnyLinear] = packed) -> None:
        """Give torch's linears another form, once their weights are written; frees each before it takes the next."""
        for layer in self.layers:
            layer.qkv = _formed(layer.qkv, form)
            layer.output = _formed(layer.output, form)
            layer.gate_up = _formed(layer.gate_up, form)
            layer.down = _formed(layer.down, form)
        self.head = _formed(self.head, form)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(name in a transformers checkpoint, the tensor), of those that are tensors still."""
        for name, destination in self.destinations():
            if isinstance(destination, TensorDestination):
                yield name, destination.tensor

    def destinations(self) -> Iterator[tuple[str, Destination]]:
        """(name in a transformers checkpoint, where to write it); fused parameters appear as their parts.

        They can be written until `pack`.
        """
        config = self.config
        qkv_rows = [config.num_heads * config.head_dim] + 2 * [config.num_kv_heads * config.head_dim]
        if self.embedding is not None:
            yield "model.embed_tokens.weight", TensorDestination(self.embedding)
        for index, layer in enumerate(self.layers):
            prefix = f"model.layers.{index}."
            yield prefix + "input_layernorm.weight", TensorDestination(layer.input_norm.weight)
            if layer.attention_output_norm is not None and layer.mlp_output_norm is not None:
                yield prefix + "post_attention_layernorm.weight", TensorDestination(layer.attention_output_norm.weight)
                yield prefix + "pre_feedforward_layernorm.weight", TensorDestination(layer.mlp_norm.weight)
                yield prefix + "post_feedforward_layernorm.weight", TensorDestination(layer.mlp_output_norm.weight)
            else:
                yield prefix + "post_attention_layernorm.weight", TensorDestination(layer.mlp_norm.weight)
            yield from _parts(layer.qkv, qkv_rows, [prefix + name for name in _QKV])
            yield from _parts(layer.output, [config.hidden_size], [prefix + _OUTPUT])
            yield from _parts(layer.gate_up, 2 * [config.intermediate_size], [prefix + name for name in _GATE_UP])
            yield from _parts(layer.down, [config.hidden_size], [prefix + _DOWN])
            if layer.heads.q_norm is not None and layer.heads.k_norm is not None:
                yield prefix + "self_attn.q_norm.weight", TensorDestination(layer.heads.q_norm.weight)
                yield prefix + "self_attn.k_norm.weight", TensorDestination(layer.heads.k_norm.weight)
        yield "model.norm.weight", TensorDestination(self.norm.weight)
        if not config.is_embedding_tied or self.embedding is None:
            name = "model.embed_tokens" if config.is_embedding_tied else "lm_head"
            yield from _parts(self.head, [len(self.share.vocabulary)], [name])


def make_decoder(
    whole: ModelConfig,
    shape: DecoderShape,
    dtype: torch.dtype,
    ops: Ops | None = None,
    linears: Linears | None = None,
    ranks: Ranks | None = None,
) -> Decoder:
    """A decoder with parameters still to be written; `ops` and `linears` are torch's if none are given.

    With `ranks`, this rank's share of the model.

    Raises:
        StartError: the model can't be shared out among so many.
    """
    linears, ranks = linears or TorchLinears(dtype), ranks or Alone()
    share = Share(whole=whole, rank=ranks.rank, num_ranks=ranks.num_ranks)
    config, num_ids = share.config(), len(share.vocabulary)
    head: AnyLinear
    embedding: Tensor | None = None
    if config.is_embedding_tied:
        name = "model.embed_tokens.weight"
        head = made = linears.make(LinearShape([name], num_ids, config.hidden_size))
        embedding = made.weight if isinstance(made, Linear) else None
    else:
        embedding = torch.empty(num_ids, config.hidden_size, dtype=dtype)
        head = linears.make(LinearShape(["lm_head.weight"], num_ids, config.hidden_size))
    rotary = make_rotary(config.head_dim, config.rope_theta, config.rope_scaling, dtype)
    return Decoder(
        config=config,
        share=share,
        ranks=ranks,
        shape=shape,
        dtype=dtype,
        embedding=embedding,
        layers=tuple(_make_layer(index, share, shape, dtype, linears) for index in range(config.num_layers)),
        norm=_make_norm(config.hidden_size, config, shape, dtype),
        head=head,
        rotary=rotary,
        local_rotary=rotary
        if config.local_rope_theta is None
        else make_rotary(config.head_dim, config.local_rope_theta, None, dtype),
        ops=ops or TorchOps(),
    )


def num_parameters(config: ModelConfig) -> int:
    """Number of weights, biases and norms left out."""
    attention = 2 * config.hidden_size * config.head_dim * (config.num_heads + config.num_kv_heads)
    layer = attention + 3 * config.hidden_size * config.intermediate_size
    return config.num_layers * layer + config.vocabulary * config.hidden_size * (2 - config.is_embedding_tied)


def _make_layer(index: int, share: Share, shape: DecoderShape, dtype: torch.dtype, linears: Linears) -> Layer:
    config = share.config()
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def norm(features: int) -> RMSNorm:
        return _make_norm(features, config, shape, dtype)

    def linear(
        names: Sequence[str], num_outputs: int, num_columns: int, has_bias: bool, gate: Activation | None = None
    ) -> AnyLinear:
        tensors = [f"model.layers.{index}.{name}.weight" for name in names]
        has_place = share.holds(f"{names[0]}.bias")
        return linears.make(LinearShape(tensors, num_outputs, num_columns, has_bias=has_bias and has_place, gate=gate))

    return Layer(
        input_norm=norm(hidden),
        qkv=linear(_QKV, q_size + 2 * kv_size, hidden, shape.has_qkv_bias),
        heads=Heads(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=head_dim,
            q_norm=norm(head_dim) if shape.has_head_norms else None,
            k_norm=norm(head_dim) if shape.has_head_norms else None,
        ),
        output=linear([_OUTPUT], hidden, q_size, shape.has_output_bias),
        attention_output_norm=norm(hidden) if shape.has_output_norms else None,
        mlp_norm=norm(hidden),
        gate_up=linear(_GATE_UP, 2 * inner, hidden, shape.has_mlp_bias, shape.activation),
        down=linear([_DOWN], hidden, inner, shape.has_mlp_bias),
        mlp_output_norm=norm(hidden) if shape.has_output_norms else None,
    )


def _make_norm(features: int, config: ModelConfig, shape: DecoderShape, dtype: torch.dtype) -> RMSNorm:
    return make_norm(features, eps=config.norm_eps, dtype=torch.float32 if shape.is_norm_centred else dtype)


def _formed(linear: AnyLinear, form: Callable[[Linear], AnyLinear]) -> AnyLinear:
    return form(linear) if isinstance(linear, Linear) else linear


def _parts(linear: AnyLinear, num_rows: Sequence[int], names: Sequence[str]) -> Iterator[tuple[str, Destination]]:
    assert isinstance(linear, Linear | PackedWeight), "what oneDNN packed can't be written"
    for name, (weight, bias) in zip(names, parts(linear, num_rows), strict=True):
        yield f"{name}.weight", weight
        if bias is not None:
            yield f"{name}.bias", bias
