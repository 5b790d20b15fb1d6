"""Attention of a row with several new tokens, in tiles of neighbouring queries over one block after the other."""

# T tokens in batch · N query heads · K kv heads · G query heads per kv head · H head dim
# S positions in a block · L tokens in a tile

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model_runner.batch import BatchPlan

from .blocks import Blocks, Gather
from .softmax import MASKED, Partial, Scaling, weigh_

_TILE_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """Neighbouring new tokens and the gathered blocks that they see, from `first_block` on.

    A block's mask is None where all its positions are seen.
    """

    tokens: slice
    first_block: int
    masks: tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend:
    """One row with several new tokens."""

    gather: Gather
    tiles: tuple[_Tile, ...]


def plan_extends(batch: BatchPlan, blocks: Blocks, window: int | None) -> tuple[Extend, ...]:
    """The work of a batch's rows with several new tokens; blocks wholly before a window are not read."""
    return tuple(_plan(batch, b, blocks, window) for b in np.flatnonzero(batch.extend_lens > 1).tolist())


def attend_extend(layer: int, q_TNH: Tensor, extend: Extend, blocks: Blocks, scaling: Scaling, out_TNH: Tensor) -> None:
    """Write one row's part of the output."""
    K, H = blocks.spec.num_kv_heads, blocks.spec.head_dim
    G = q_TNH.shape[1] // K
    keys, values = (torch.split(x.transpose(0, 1), blocks.tokens, dim=1) for x in blocks.read(layer, extend.gather))
    for tile in extend.tiles:
        q_LKGH = q_TNH[tile.tokens].view(-1, K, G, H)
        q_KGLH = q_LKGH.permute(1, 2, 0, 3).float().reshape(K, -1, H)
        running: Partial | None = None
        for block, mask in enumerate(tile.masks, tile.first_block):
            partial = _partial(q_KGLH, keys[block], values[block], mask, scaling)
            if running is None:
                running = partial
            else:
                running.merge_(partial)
        assert running is not None, "a tile sees at least its own block"
        result_KGLH = running.result().view(K, G, -1, H)
        out_TNH[tile.tokens].view(-1, K, G, H).copy_(result_KGLH.permute(2, 0, 1, 3))


def _plan(batch: BatchPlan, b: int, blocks: Blocks, window: int | None) -> Extend:
    kv_len, prefix, start = int(batch.kv_lens[b]), int(batch.prefix_lens[b]), int(batch.qo_indptr[b])
    cuts = list(_cut(prefix, kv_len))
    firsts = blocks.first_seen(np.array([first for first, _ in cuts], np.int32), window).tolist()
    gathered, last = firsts[0], (kv_len - 1) // blocks.tokens
    width = int(blocks.num_pages(np.array([kv_len], np.int32), np.array([last]))[0])
    num_pages = (last - gathered) * blocks.pages_per_block + width
    end_slot = (last * blocks.pages_per_block + width) * blocks.spec.page_tokens
    tiles = tuple(
        _Tile(
            tokens=slice(start + first - prefix, start + end - prefix),
            first_block=first_block - gathered,
            masks=tuple(_masks(first, end, range(first_block * blocks.tokens, end_slot), blocks, window)),
        )
        for (first, end), first_block in zip(cuts, firsts, strict=True)
    )
    return Extend(gather=blocks.gather(batch, np.array([b]), np.array([gathered]), num_pages), tiles=tiles)


def _masks(first: int, end: int, slots: range, blocks: Blocks, window: int | None) -> Iterator[Tensor | None]:
    """For queries at positions [first, end), the causal mask [1, G * L, S] of each block of slots up to their own.

    A block before a query's window is masked whole: its partial has the weight 0 beside the query's own position.
    """
    num_groups = blocks.spec.num_heads // blocks.spec.num_kv_heads
    for start in range(slots.start, end, blocks.tokens):
        stop = min(start + blocks.tokens, slots.stop)
        if stop <= first + 1 and (window is None or start > end - 1 - window):
            yield None
            continue
        positions, queries = np.arange(start, stop), np.arange(first, end)[:, None]
        is_seen = positions <= queries
        if window is not None:
            is_seen &= positions > queries - window
        mask_LS = np.where(is_seen, np.float32(0), np.float32(MASKED))
        yield torch.from_numpy(np.tile(mask_LS, (num_groups, 1))[None])


def _partial(queries: Tensor, keys_KSH: Tensor, values_KSH: Tensor, mask: Tensor | None, scaling: Scaling) -> Partial:
    """Partials [K, queries, ...] of a tile over one block."""
    if mask is not None and scaling.factor is not None:
        scores = torch.baddbmm(mask, queries, keys_KSH.transpose(1, 2), alpha=scaling.factor)
    else:
        scores = scaling.apply_(torch.bmm(queries, keys_KSH.transpose(1, 2)))
        if mask is not None:
            scores.add_(mask)
    largest, total = weigh_(scores)
    return Partial(largest, total, torch.bmm(scores, values_KSH))


def _cut(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut [start, end) at multiples of the tile size."""
    while start < end:
        stop = min(end, (start // _TILE_TOKENS + 1) * _TILE_TOKENS)
        yield start, stop
        start = stop
