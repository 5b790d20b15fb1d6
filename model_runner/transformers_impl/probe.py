"""Asks a model of transformers what its attention is, by running a short prompt through it with a recording function.

Read off are shapes, scale, softcap and window of every layer; anything that our attention doesn't do is refused. The
weights may be anything.
"""

# N query heads · K kv heads · H head dim

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from model_runner.attention.backend import AttentionSpec

_PROBE = "axil_probe"
_NUM_TOKENS = 4
_WITHOUT_EFFECT = {"cache_position", "output_attentions", "position_embeddings", "position_ids", "use_cache"}
"""Keyword arguments of attention that change nothing once the positions are in q and k."""

_FIXED = {"s_aux", "sinks"}
"""What a layer either has or has not; anything else that is absent now may come with a longer prompt."""

_Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query's position, key's position) -> whether that query sees that key."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """Goes through the model where a mask would; whoever else touches it fails, which refuses the model."""

    sees: _Sees


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One layer's attention, as its model called for it."""

    module: nn.Module
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None
    window: int | None


@dataclass(frozen=True, slots=True)
class _Record:
    """The calls so far, and up to where masks are looked at."""

    context_tokens: int
    attentions: list[Attention] = field(default_factory=list)


_RECORD: ContextVar[_Record] = ContextVar("axil_record")


def probe(model: PreTrainedModel, *, context_tokens: int) -> tuple[Attention, ...]:
    """The attention of every layer, in order; leaves the model's attention implementation changed.

    Raises:
        ValueError: some layer does what our attention can't; the message says what.
    """
    AttentionInterface.register(_PROBE, _recorded_attention)
    AttentionMaskInterface.register(_PROBE, _unmade_mask)
    model.set_attn_implementation(_PROBE)
    record = _Record(context_tokens)
    running = _RECORD.set(record)
    token_ids = torch.zeros(1, _NUM_TOKENS, dtype=torch.long)
    positions = torch.arange(_NUM_TOKENS)[None]
    try:
        with torch.inference_mode():
            model.get_decoder()(input_ids=token_ids, position_ids=positions, use_cache=False)
    except (TypeError, AttributeError, KeyError, RuntimeError, IndexError) as error:
        raise ValueError(
            f"its code does more with attention and its mask than call transformers' interface: {error!r}"
        ) from error
    finally:
        _RECORD.reset(running)
    num_layers = model.config.num_hidden_layers
    if len(record.attentions) != num_layers or len({one.module for one in record.attentions}) != num_layers:
        raise ValueError(
            f"its {num_layers} layers call transformers' attention interface {len(record.attentions)} times and not "
            "once each; recurrent, convolutional and repeated layers are not supported"
        )
    return tuple(record.attentions)


def spec_of(attentions: tuple[Attention, ...], dtype: torch.dtype, *, page_tokens: int) -> AttentionSpec:
    """The shape of a model's attention.

    Raises:
        ValueError: its layers differ in more than the window.
    """
    first = attentions[0]
    for name in ("num_heads", "num_kv_heads", "head_dim", "scale", "softcap"):
        values = {getattr(one, name) for one in attentions}
        if len(values) > 1:
            raise ValueError(f"its layers differ in {name}: {', '.join(map(str, sorted(values)))}")
    return AttentionSpec(
        num_layers=len(attentions),
        num_heads=first.num_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        scale=first.scale,
        softcap=first.softcap,
        dtype=dtype,
        page_tokens=page_tokens,
        windows=tuple(one.window for one in attentions),
    )


def _recorded_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    dropout: float = 0.0,
    **others: object,
) -> tuple[Tensor, None]:
    record = _RECORD.get()
    where = f"layer {len(record.attentions)}"
    if is_causal is False or not getattr(module, "is_causal", True):
        raise ValueError(f"{where} has attention that is not causal")
    absent = {name for name in _FIXED if others.get(name) is None}
    unknown = sorted(others.keys() - _WITHOUT_EFFECT - absent)
    if unknown:
        sinks = " (attention sinks)" if _FIXED & set(unknown) else ""
        raise ValueError(f"{where} calls attention with {', '.join(unknown)}{sinks}, which is not supported")
    if not isinstance(attention_mask, _Mask):
        raise ValueError(f"{where} has a mask of its own making")
    if len({query.shape[2], key.shape[2], value.shape[2], _NUM_TOKENS}) > 1:
        raise ValueError(f"{where} attends to other positions than those of the prompt")
    num_heads, num_kv_heads, head_dim = query.shape[1], key.shape[1], key.shape[-1]
    if query.shape[-1] != head_dim or value.shape[-1] > head_dim or value.shape[1] != num_kv_heads:
        raise ValueError(
            f"{where} has q, k and v of shapes {[list(x.shape) for x in (query, key, value)]}, which don't go together"
        )
    record.attentions.append(
        Attention(
            module=module,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5 if scaling is None else float(scaling),
            softcap=softcap,
            window=_window(attention_mask.sees, sliding_window, record.context_tokens, where),
        )
    )
    return query.new_zeros(1, _NUM_TOKENS, num_heads, value.shape[-1]), None


def _unmade_mask(*, mask_function: _Sees, **_: object) -> _Mask:
    return _Mask(mask_function)


def _window(sees: _Sees, said: int | None, context_tokens: int, where: str) -> int | None:
    """The window of a layer's mask: what the layer says, or none; the mask decides."""
    queries, keys = _pairs(context_tokens, said)
    is_seen = sees(torch.tensor(0), torch.tensor(0), queries, keys)
    for window in (said, None):
        first = -1 if window is None else queries - window
        if torch.equal(is_seen.expand_as(keys), (keys <= queries) & (keys > first)):
            return None if window is None or window >= context_tokens else window
    raise ValueError(f"{where} has a mask that is neither causal nor a sliding window (attention in chunks, perhaps)")


def _pairs(context_tokens: int, window: int | None) -> tuple[Tensor, Tensor]:
    """Pairs of query's and key's positions that tell masks apart: around powers of two and the window's ends."""
    ends = torch.tensor(sorted(set(_ends(context_tokens, window))))
    queries, keys = torch.cartesian_prod(ends, ends).unbind(1)
    if window is None:
        return queries, keys
    edges = torch.cat([ends - window + offset for offset in (-1, 0, 1)])
    queries, keys = torch.cat((queries, ends.repeat(3))), torch.cat((keys, edges))
    is_real = keys >= 0
    return queries[is_real], keys[is_real]


def _ends(context_tokens: int, window: int | None) -> Iterator[int]:
    sizes = [1 << exponent for exponent in range(context_tokens.bit_length())] + [context_tokens]
    for size in [*sizes, window] if window else sizes:
        yield from (end for end in (size - 1, size, size + 1) if end < context_tokens)
