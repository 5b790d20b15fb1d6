"""Attention in plain torch: the fallback for every CPU and the oracle for faster backends.

The KV range of a row is cut into blocks at fixed absolute positions. A query's softmax over one block gives a partial
(largest score, sum, weighted values); partials are merged in block order. So the order of a token's sums depends on its
position alone: not on where a chunk began, on which pages lie where, or on who shares the batch. What can still differ
in the last bits is the inside of one block, because another kernel takes the sum for another number of

- rows of a matrix product: a decode token has one query per head, a prefill tile up to 256;
- positions: a row's last block is read only as far as the row fills it, rounded up to `WIDTH_TOKENS`, so a token sees
  its own block in another width when it ends a chunk than when more of the block was computed with it;
- columns that are no multiple of 8, for exp2, whose vectorised body and scalar tail differ.

All of it is computed in float32, whatever the dtype of the pool. Pages are gathered once, K and V together, and the
matrix products read the heads in place, a token's whole row apart.
"""

# T tokens in batch · B decode rows, longest first · W work items: one block of one decode row
# N query heads · K kv heads · G query heads per kv head · H head dim · S positions in a block · L tokens in a tile

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_runner.batch import BatchPlan
from model_runner.kv_pool import KVPool, make_kv_pool

from .backend import AttentionSpec, Capabilities

BLOCK_TOKENS = 256
TILE_TOKENS = 256
WIDTH_TOKENS = 64
GATHER_BYTES = 2 << 20
MASKED = -1e30


@dataclass(frozen=True, slots=True)
class _Partial:
    """Softmax over some positions, not yet divided: largest score, sum of weights, weighted sum of values."""

    largest: Tensor
    total: Tensor
    weighted: Tensor

    def first(self, count: int) -> _Partial:
        """A view of the first items (dimension 1)."""
        return _Partial(self.largest[:, :count], self.total[:, :count], self.weighted[:, :count])

    def selected(self, index: Tensor) -> _Partial:
        """A copy of some items (dimension 1)."""
        return _Partial(*(x.index_select(1, index) for x in (self.largest, self.total, self.weighted)))

    def merge_(self, later: _Partial) -> None:
        """Take in the partial of the next block."""
        largest = torch.maximum(self.largest, later.largest)
        # exp, not exp2: exp2 rounds otherwise in the scalar tail of a small tensor, so by the row's place in the batch.
        own, other = ((one.largest - largest).mul_(math.log(2)).exp_() for one in (self, later))
        self.total.mul_(own).add_(later.total.mul_(other))
        self.weighted.mul_(own).add_(later.weighted.mul_(other))
        self.largest.copy_(largest)

    def result(self) -> Tensor:
        return self.weighted.div_(self.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gather:
    """Pages to read, in the order of their positions, and the slots behind a row's end, to be cleared."""

    pages: Tensor
    tail: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodeItems:
    """Work items of one width, computed together; `rows_W` index the decode rows. No mask: all positions are seen."""

    gather: _Gather
    rows_W: Tensor
    mask_W1S: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decodes:
    """All decode rows; `items_by_block[j]` are the work items of block j, for as many of the rows as reach into it."""

    tokens_B: Tensor
    items: tuple[_DecodeItems, ...]
    items_by_block: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """Neighbouring new tokens of one row; a block's mask is None where all its positions precede them."""

    tokens: slice
    masks: tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extend:
    """One row with several new tokens."""

    gather: _Gather
    tiles: tuple[_Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What the layers of one window share."""

    decodes: _Decodes | None
    extends: tuple[_Extend, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchStep:
    """What all layers of a step share; the work is by window, None being none."""

    out_loc_T: Tensor
    work: dict[int | None, _Work]


class TorchAttention:
    """Grouped matrix products over gathered blocks."""

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._pages_per_block = max(1, round(BLOCK_TOKENS / spec.page_tokens))
        self._block_tokens = self._pages_per_block * spec.page_tokens
        self._width_pages = max(1, WIDTH_TOKENS // spec.page_tokens)
        # Weights are powers of two: torch's exp is six times slower where it underflows, as at every masked position.
        self._scale = spec.scale * math.log2(math.e)
        self._cap = None if spec.softcap is None else spec.softcap * math.log2(math.e)
        self._windows = dict.fromkeys(spec.window(layer) for layer in range(spec.num_layers))
        self._pool: KVPool | None = None
        self._gathered = torch.empty(0, dtype=spec.dtype)

    def capabilities(self) -> Capabilities:
        """Any shape, float32 and bfloat16."""
        return Capabilities(
            dtypes=(torch.float32, torch.bfloat16), page_tokens=None, head_dims=None, is_order_fixed=True
        )

    def make_kv_pool(self, num_pages: int) -> KVPool:
        """Allocate the pool."""
        spec = self._spec
        self._pool = make_kv_pool(
            num_pages=num_pages,
            page_tokens=spec.page_tokens,
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=spec.dtype,
        )
        return self._pool

    def begin_step(self, batch: BatchPlan) -> TorchStep:
        """Which pages each piece of work reads, and its masks."""
        return TorchStep(
            out_loc_T=batch.out_loc_T,
            work={
                window: _Work(
                    decodes=self._decodes(batch, window),
                    extends=tuple(
                        self._extend(batch, b, window) for b in np.flatnonzero(batch.extend_lens > 1).tolist()
                    ),
                )
                for window in self._windows
            },
        )

    def forward(
        self, layer: int, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, handle: TorchStep, out_TNH: Tensor
    ) -> Tensor:
        """Store, then attend."""
        assert self._pool is not None, "make_kv_pool comes first"
        self._pool.store(layer, handle.out_loc_T, k_TKH, v_TKH)
        work = handle.work[self._spec.window(layer)]
        if work.decodes is not None:
            self._attend_decodes(layer, q_TNH, work.decodes, out_TNH)
        for extend in work.extends:
            self._attend_extend(layer, q_TNH, extend, out_TNH)
        return out_TNH

    # decode: many rows, one query each

    def _decodes(self, batch: BatchPlan, window: int | None) -> _Decodes | None:
        rows = np.flatnonzero(batch.extend_lens == 1)
        if not len(rows):
            return None
        rows = rows[np.argsort(-batch.kv_lens[rows], kind="stable")]
        num_blocks = -(-batch.kv_lens[rows] // self._block_tokens)
        num_rows_by_block = [int((num_blocks > j).sum()) for j in range(num_blocks[0])]
        item_rows = np.concatenate([np.arange(n) for n in num_rows_by_block])
        item_blocks = np.repeat(np.arange(len(num_rows_by_block)), num_rows_by_block)
        widths = self._num_pages(batch.kv_lens[rows[item_rows]], item_blocks)
        order = np.argsort(-widths, kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        items = []
        for chosen in self._groups(order, widths):
            own_rows, blocks, width = rows[item_rows[chosen]], item_blocks[chosen], int(widths[chosen[0]])
            num_seen = batch.kv_lens[own_rows] - blocks * self._block_tokens
            slots = np.arange(width * self._spec.page_tokens)
            is_hidden = slots >= num_seen[:, None]
            if window is not None:
                is_hidden |= slots < num_seen[:, None] - window
            mask = np.where(is_hidden, np.float32(MASKED), np.float32(0))[:, None] if is_hidden.any() else None
            items.append(
                _DecodeItems(
                    gather=self._gather(batch, own_rows, blocks, width),
                    rows_W=torch.from_numpy(item_rows[chosen]),
                    mask_W1S=None if mask is None else torch.from_numpy(mask),
                )
            )
        return _Decodes(
            tokens_B=torch.from_numpy(batch.qo_indptr[rows].astype(np.int64)),
            items=tuple(items),
            items_by_block=torch.split(torch.from_numpy(places), num_rows_by_block),
        )

    def _groups(self, order: NDArray[np.int64], widths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Cut the items where their width changes and where a gather would grow too large."""
        page_bytes = self._spec.page_tokens * 2 * self._spec.num_kv_heads * self._spec.head_dim * 4
        for same in np.split(order, np.flatnonzero(np.diff(widths[order])) + 1):
            per_gather = max(1, GATHER_BYTES // (int(widths[same[0]]) * page_bytes))
            for start in range(0, len(same), per_gather):
                yield same[start : start + per_gather]

    def _attend_decodes(self, layer: int, q_TNH: Tensor, decodes: _Decodes, out_TNH: Tensor) -> None:
        K, H = self._spec.num_kv_heads, self._spec.head_dim
        q_BNH = q_TNH.index_select(0, decodes.tokens_B).float()
        pieces = []
        for items in decodes.items:
            W = len(items.rows_W)
            q_WKGH = q_BNH.index_select(0, items.rows_W).view(W, K, -1, H)
            keys_WSKH, values_WSKH = (x.view(W, -1, K, H) for x in self._read(layer, items.gather))
            pieces.append(self._decode_partial(q_WKGH, keys_WSKH, values_WSKH, items.mask_W1S))
        partial = pieces[0] if len(pieces) == 1 else _concatenated(pieces)
        running = partial.selected(decodes.items_by_block[0])
        for items_of_block in decodes.items_by_block[1:]:
            running.first(len(items_of_block)).merge_(partial.selected(items_of_block))
        out_BNH = running.result().transpose(0, 1).reshape(q_BNH.shape)
        out_TNH.index_copy_(0, decodes.tokens_B, out_BNH.to(out_TNH.dtype))

    def _decode_partial(self, q_WKGH: Tensor, keys_WSKH: Tensor, values_WSKH: Tensor, mask: Tensor | None) -> _Partial:
        """Partials [K, W, G, ...]; one product per kv head, which leaves its keys where they lie."""
        W, K, G, H = q_WKGH.shape
        scores_KWGS = q_WKGH.new_empty(K, W, G, keys_WSKH.shape[1])
        for k in range(K):
            torch.bmm(q_WKGH[:, k], keys_WSKH[:, :, k].transpose(1, 2), out=scores_KWGS[k])
        self._scale_(scores_KWGS)
        if mask is not None:
            scores_KWGS.add_(mask)
        largest, total = _weigh_(scores_KWGS)
        weighted_KWGH = q_WKGH.new_empty(K, W, G, H)
        for k in range(K):
            torch.bmm(scores_KWGS[k], values_WSKH[:, :, k], out=weighted_KWGH[k])
        return _Partial(largest, total, weighted_KWGH)

    # extend: one row, many queries

    def _extend(self, batch: BatchPlan, b: int, window: int | None) -> _Extend:
        kv_len, prefix, start = int(batch.kv_lens[b]), int(batch.prefix_lens[b]), int(batch.qo_indptr[b])
        last = (kv_len - 1) // self._block_tokens
        num_pages = last * self._pages_per_block + int(self._num_pages(np.array([kv_len]), np.array([last]))[0])
        tiles = tuple(
            _Tile(
                tokens=slice(start + first - prefix, start + end - prefix),
                masks=tuple(self._masks(first, end, num_pages * self._spec.page_tokens, window)),
            )
            for first, end in _cut(prefix, kv_len)
        )
        return _Extend(gather=self._gather(batch, np.array([b]), np.array([0]), num_pages), tiles=tiles)

    def _masks(self, first: int, end: int, num_slots: int, window: int | None) -> Iterator[Tensor | None]:
        """For queries at positions [first, end), the causal mask [1, G * L, S] of each block up to their own.

        A block before a query's window is masked whole: its partial has the weight 0 beside the query's own position.
        """
        for start in range(0, end, self._block_tokens):
            stop = min(start + self._block_tokens, num_slots)
            if stop <= first + 1 and (window is None or start > end - 1 - window):
                yield None
                continue
            positions, queries = np.arange(start, stop), np.arange(first, end)[:, None]
            is_seen = positions <= queries
            if window is not None:
                is_seen &= positions > queries - window
            mask_LS = np.where(is_seen, np.float32(0), np.float32(MASKED))
            yield torch.from_numpy(np.tile(mask_LS, (self._spec.num_heads // self._spec.num_kv_heads, 1))[None])

    def _attend_extend(self, layer: int, q_TNH: Tensor, extend: _Extend, out_TNH: Tensor) -> None:
        K, H = self._spec.num_kv_heads, self._spec.head_dim
        G = q_TNH.shape[1] // K
        keys, values = (
            torch.split(x.transpose(0, 1), self._block_tokens, dim=1) for x in self._read(layer, extend.gather)
        )
        for tile in extend.tiles:
            q_LKGH = q_TNH[tile.tokens].view(-1, K, G, H)
            q_KGLH = q_LKGH.permute(1, 2, 0, 3).float().reshape(K, -1, H)
            running: _Partial | None = None
            for block, mask in enumerate(tile.masks):
                partial = self._extend_partial(q_KGLH, keys[block], values[block], mask)
                if running is None:
                    running = partial
                else:
                    running.merge_(partial)
            assert running is not None, "a tile sees at least its own block"
            result_KGLH = running.result().view(K, G, -1, H)
            out_TNH[tile.tokens].view(-1, K, G, H).copy_(result_KGLH.permute(2, 0, 1, 3))

    def _extend_partial(self, queries: Tensor, keys_KSH: Tensor, values_KSH: Tensor, mask: Tensor | None) -> _Partial:
        """Partials [K, queries, ...] of a tile over one block."""
        if mask is not None and self._cap is None:
            scores = torch.baddbmm(mask, queries, keys_KSH.transpose(1, 2), alpha=self._scale)
        else:
            scores = self._scale_(torch.bmm(queries, keys_KSH.transpose(1, 2)))
            if mask is not None:
                scores.add_(mask)
        largest, total = _weigh_(scores)
        return _Partial(largest, total, torch.bmm(scores, values_KSH))

    # both

    def _scale_(self, scores: Tensor) -> Tensor:
        if self._cap is None:
            return scores.mul_(self._scale)
        return scores.mul_(self._scale / self._cap).tanh_().mul_(self._cap)

    def _num_pages(self, kv_lens: NDArray[np.int32], blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Pages to read of rows' blocks: all, or in a last block as many as the row fills, rounded up."""
        filled = -(-(kv_lens - blocks * self._block_tokens) // self._spec.page_tokens)
        rounded: NDArray[np.int64] = -(-filled // self._width_pages) * self._width_pages
        return rounded.clip(max=self._pages_per_block)

    def _gather(self, batch: BatchPlan, rows: NDArray[np.int64], blocks: NDArray[np.int64], num_pages: int) -> _Gather:
        """`num_pages` pages from the start of (row, block) pairs on; padding is the blank page."""
        assert self._pool is not None, "make_kv_pool comes first"
        index = batch.kv_indptr[rows, None] + (blocks[:, None] * self._pages_per_block) + np.arange(num_pages)
        ends = batch.kv_indptr[rows + 1, None]
        pages = np.where(
            index < ends, batch.kv_indices[np.minimum(index, len(batch.kv_indices) - 1)], self._pool.blank_page
        )
        places = np.flatnonzero(index == ends - 1)
        offsets = np.arange(batch.page_tokens)
        is_tail = offsets >= batch.last_page_len[rows[places // num_pages], None]
        return _Gather(
            pages=torch.from_numpy(pages.astype(np.int64).ravel()),
            tail=torch.from_numpy((places[:, None] * batch.page_tokens + offsets)[is_tail]),
        )

    def _read(self, layer: int, gather: _Gather) -> tuple[Tensor, Tensor]:
        """Keys and values [slots, K, H] in float32, views that hold until the next read; behind a row's end is zero."""
        assert self._pool is not None, "make_kv_pool comes first"
        pages = self._pool.layers[layer].flatten(1)
        num_elements = len(gather.pages) * pages.shape[1]
        if self._gathered.numel() < num_elements:
            self._gathered = torch.empty(num_elements, dtype=pages.dtype)
        gathered = self._gathered[:num_elements].view(-1, pages.shape[1])
        torch.index_select(pages, 0, gather.pages, out=gathered)
        kv = gathered.view(-1, 2, self._spec.num_kv_heads, self._spec.head_dim)
        if len(gather.tail):
            kv.index_fill_(0, gather.tail, 0)
        keys, values = kv.float().unbind(1)
        return keys, values


def _weigh_(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Turn scores into weights relative to the largest, in place; gives the largest score and the sum of weights."""
    largest = scores.amax(dim=-1, keepdim=True)
    return largest, scores.sub_(largest).exp2_().sum(dim=-1, keepdim=True)


def _cut(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut [start, end) at multiples of the tile size."""
    while start < end:
        stop = min(end, (start // TILE_TOKENS + 1) * TILE_TOKENS)
        yield start, stop
        start = stop


def _concatenated(pieces: list[_Partial]) -> _Partial:
    return _Partial(
        torch.cat([piece.largest for piece in pieces], dim=1),
        torch.cat([piece.total for piece in pieces], dim=1),
        torch.cat([piece.weighted for piece in pieces], dim=1),
    )
