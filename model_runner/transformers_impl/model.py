"""A decoder of transformers, as the runner sees models. All rows of a step are one long row to it.

Its attention modules call `_paged_attention`, which hands q, k and v to the backend. What else in the model would look
at neighbouring tokens isn't known here: `probe` and `verification` find it at start.
"""

# T tokens in batch · B rows · N query heads · K kv heads · H head dim · D model dim · V vocabulary

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from model_runner.attention.backend import AttentionBackend

Handle = TypeVar("Handle")

PAGED = "axil_paged"
"""The implementation's name in transformers' registry. It has no mask function there, so no masks are made."""


@dataclass(frozen=True, slots=True)
class _Step(Generic[Handle]):
    """What the attention modules of one forward need."""

    backend: AttentionBackend[Handle]
    handle: Handle
    layers: Mapping[nn.Module, int]


_STEP: ContextVar[_Step[Any]] = ContextVar("axil_step")
"""The forward that is running. Not every model passes keyword arguments down to its attention."""


class _Hidden(tuple[Tensor]):
    """What a decoder gives to its head: hidden states, and None for whatever else some head passes on."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


class _GivenHidden(nn.Module):
    """Stands below the head in place of the decoder: gives the hidden states that it gets."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> _Hidden:
        return _Hidden((inputs_embeds,))


class TransformersModel:
    """Layers and head of a causal language model, apart; `attention_modules` in the order of their layers.

    Takes the model over: its layers are replaced in it, so that the rest is the head with all that its class does to
    logits.
    """

    def __init__(self, causal: PreTrainedModel, attention_modules: tuple[nn.Module, ...]) -> None:
        AttentionInterface.register(PAGED, _paged_attention)
        causal.set_attn_implementation(PAGED)
        self._layers = {module: layer for layer, module in enumerate(attention_modules)}
        self._decoder = causal.get_decoder()
        self._head = causal
        self.vocabulary: int = causal.get_input_embeddings().weight.shape[0]
        name = next(name for name, module in causal.named_modules() if module is self._decoder)
        causal.set_submodule(name, _GivenHidden())

    def forward(
        self, token_ids_T: Tensor, positions_T: Tensor, backend: AttentionBackend[Handle], handle: Handle
    ) -> Tensor:
        """Hidden states [T, D] that `logits` takes; stores the tokens' K and V."""
        running = _STEP.set(_Step(backend, handle, self._layers))
        try:
            output = self._decoder(input_ids=token_ids_T[None], position_ids=positions_T[None], use_cache=False)
        finally:
            _STEP.reset(running)
        hidden_TD: Tensor = output.last_hidden_state[0]
        return hidden_TD

    def logits(self, hidden_BD: Tensor) -> Tensor:
        """Logits [B, V] in float32 of the given hidden states."""
        logits_BV: Tensor = self._head(inputs_embeds=hidden_BD[None], use_cache=False).logits[0]
        return logits_BV.float()


def _paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention of one layer, in the form of transformers' interface: heads before tokens in, after them out.

    Scale, window and softcap were read off by the probe, and are the backend's. Values narrower than keys (multi-head
    latent attention) are stored with zeros behind them.
    """
    step = _STEP.get()
    head_dim, value_dim = key.shape[-1], value.shape[-1]
    q_TNH, k_TKH, v_TKH = (x[0].transpose(0, 1) for x in (query, key, F.pad(value, (0, head_dim - value_dim))))
    out_TNH = torch.empty(q_TNH.shape, dtype=query.dtype)
    step.backend.forward(step.layers[module], q_TNH, k_TKH, v_TKH, step.handle, out_TNH)
    return out_TNH[None, ..., :value_dim], None
