"""Attention of decode rows, which have one query each: all rows' blocks in a few grouped matrix products."""

# T tokens in batch · B decode rows, those with most blocks first · W work items: one block of one decode row
# N query heads · K kv heads · G query heads per kv head · H head dim · S positions in a block

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_runner.batch import BatchPlan

from .blocks import Blocks, Gather
from .softmax import MASKED, Partial, Scaling, concatenated, weigh_

_GATHER_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Items:
    """Work items of one width, computed together; `rows_W` index the decode rows. No mask: all positions are seen."""

    gather: Gather
    rows_W: Tensor
    mask_W1S: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decodes:
    """All decode rows; `items_by_turn[j]` are the work items of the j-th block that a row sees, where it has one."""

    tokens_B: Tensor
    items: tuple[_Items, ...]
    items_by_turn: tuple[Tensor, ...]


def plan_decodes(batch: BatchPlan, blocks: Blocks, window: int | None) -> Decodes | None:
    """The work of a batch's decode rows, if it has any; blocks wholly before a row's window are not read."""
    rows = np.flatnonzero(batch.extend_lens == 1)
    if not len(rows):
        return None
    first_blocks = blocks.first_seen(batch.kv_lens[rows] - 1, window)
    num_blocks = blocks.count(batch.kv_lens[rows]) - first_blocks
    by_most = np.argsort(-num_blocks, kind="stable")
    rows, first_blocks, num_blocks = rows[by_most], first_blocks[by_most], num_blocks[by_most]
    num_rows_by_turn = [int((num_blocks > j).sum()) for j in range(num_blocks[0])]
    item_rows = np.concatenate([np.arange(n) for n in num_rows_by_turn])
    item_blocks = np.repeat(np.arange(len(num_rows_by_turn)), num_rows_by_turn) + first_blocks[item_rows]
    widths = blocks.num_pages(batch.kv_lens[rows[item_rows]], item_blocks)
    order = np.argsort(-widths, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    items = []
    for chosen in _groups(order, widths, blocks):
        own_rows, own_blocks, width = rows[item_rows[chosen]], item_blocks[chosen], int(widths[chosen[0]])
        num_seen = batch.kv_lens[own_rows] - own_blocks * blocks.tokens
        slots = np.arange(width * blocks.spec.page_tokens)
        is_hidden = slots >= num_seen[:, None]
        if window is not None:
            is_hidden |= slots < num_seen[:, None] - window
        mask = np.where(is_hidden, np.float32(MASKED), np.float32(0))[:, None] if is_hidden.any() else None
        items.append(
            _Items(
                gather=blocks.gather(batch, own_rows, own_blocks, width),
                rows_W=torch.from_numpy(item_rows[chosen]),
                mask_W1S=None if mask is None else torch.from_numpy(mask),
            )
        )
    return Decodes(
        tokens_B=torch.from_numpy(batch.qo_indptr[rows].astype(np.int64)),
        items=tuple(items),
        items_by_turn=torch.split(torch.from_numpy(places), num_rows_by_turn),
    )


def attend_decodes(
    layer: int, q_TNH: Tensor, decodes: Decodes, blocks: Blocks, scaling: Scaling, out_TNH: Tensor
) -> None:
    """Write the decode rows' part of the output."""
    K, H = blocks.spec.num_kv_heads, blocks.spec.head_dim
    q_BNH = q_TNH.index_select(0, decodes.tokens_B).float()
    pieces = []
    for items in decodes.items:
        W = len(items.rows_W)
        q_WKGH = q_BNH.index_select(0, items.rows_W).view(W, K, -1, H)
        keys_WSKH, values_WSKH = (x.view(W, -1, K, H) for x in blocks.read(layer, items.gather))
        pieces.append(_partial(q_WKGH, keys_WSKH, values_WSKH, items.mask_W1S, scaling))
    partial = concatenated(pieces)
    running = partial.selected(decodes.items_by_turn[0])
    for items_of_turn in decodes.items_by_turn[1:]:
        running.first(len(items_of_turn)).merge_(partial.selected(items_of_turn))
    out_BNH = running.result().transpose(0, 1).reshape(q_BNH.shape)
    out_TNH.index_copy_(0, decodes.tokens_B, out_BNH.to(out_TNH.dtype))


def _groups(order: NDArray[np.int64], widths: NDArray[np.int64], blocks: Blocks) -> Iterator[NDArray[np.int64]]:
    """Cut the items where their width changes and where a gather would grow too large."""
    page_bytes = blocks.spec.page_tokens * 2 * blocks.spec.num_kv_heads * blocks.spec.head_dim * 4
    for same in np.split(order, np.flatnonzero(np.diff(widths[order])) + 1):
        per_gather = max(1, _GATHER_BYTES // (int(widths[same[0]]) * page_bytes))
        for start in range(0, len(same), per_gather):
            yield same[start : start + per_gather]


def _partial(
    q_WKGH: Tensor, keys_WSKH: Tensor, values_WSKH: Tensor, mask_W1S: Tensor | None, scaling: Scaling
) -> Partial:
    """Partials [K, W, G, ...]; one product per kv head, which leaves its keys where they lie."""
    W, K, G, H = q_WKGH.shape
    scores_KWGS = q_WKGH.new_empty(K, W, G, keys_WSKH.shape[1])
    for k in range(K):
        torch.bmm(q_WKGH[:, k], keys_WSKH[:, :, k].transpose(1, 2), out=scores_KWGS[k])
    scaling.apply_(scores_KWGS)
    if mask_W1S is not None:
        scores_KWGS.add_(mask_W1S)
    largest, total = weigh_(scores_KWGS)
    weighted_KWGH = q_WKGH.new_empty(K, W, G, H)
    for k in range(K):
        torch.bmm(scores_KWGS[k], values_WSKH[:, :, k], out=weighted_KWGH[k])
    return Partial(largest, total, weighted_KWGH)
