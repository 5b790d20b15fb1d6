"""Attention in plain torch: the fallback for every CPU and the oracle for faster backends.

The KV range of a row is cut into blocks at fixed absolute positions. A query's softmax over one block gives a partial
(largest score, sum, weighted values); partials are merged in block order. So the order of a token's sums depends on its
position alone: not on where a chunk began, on which pages lie where, or on who shares the batch. What can still differ
in the last bits is the inside of one matrix product, because MKL and oneDNN choose another kernel for another number of
rows (a decode token has one query per head, a prefill tile up to 256), and exp2 where a block is no multiple of 8,
whose vectorised body and scalar tail differ. All of it is computed in float32, whatever the dtype of the pool.
"""

# T tokens in batch · B decode rows, longest first · W work items: one block of one decode row, block-major
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
GATHER_BYTES = 8 << 20
MASKED = -1e30


@dataclass(frozen=True, slots=True)
class _Partial:
    """Softmax over some positions, not yet divided: largest score, sum of weights, weighted sum of values."""

    largest: Tensor
    total: Tensor
    weighted: Tensor

    def __getitem__(self, index: slice) -> _Partial:
        return _Partial(self.largest[index], self.total[index], self.weighted[index])

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
    """Whole blocks of pages to read: [blocks * pages per block], and the slots behind a row's end, to be cleared."""

    pages: Tensor
    tail: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodeItems:
    """Work items computed together; `rows_W` index the decode rows."""

    gather: _Gather
    rows_W: Tensor
    mask_WK1S: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decodes:
    """All decode rows; `num_rows_by_block[j]` of them reach into block j."""

    tokens_B: Tensor
    num_rows_by_block: tuple[int, ...]
    items: tuple[_DecodeItems, ...]


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
        # Weights are powers of two: torch's exp is six times slower where it underflows, as at every masked position.
        self._scale = spec.scale * math.log2(math.e)
        self._windows = dict.fromkeys(spec.window(layer) for layer in range(spec.num_layers))
        self._pool: KVPool | None = None

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
        num_rows_by_block = tuple(int((num_blocks > j).sum()) for j in range(num_blocks[0]))
        item_rows = np.concatenate([np.arange(n) for n in num_rows_by_block])
        item_blocks = np.repeat(np.arange(len(num_rows_by_block)), num_rows_by_block)
        block_bytes = self._block_tokens * self._spec.num_kv_heads * self._spec.head_dim * 4
        per_gather = max(1, GATHER_BYTES // block_bytes)
        items = []
        for start in range(0, len(item_rows), per_gather):
            own_rows, blocks = item_rows[start : start + per_gather], item_blocks[start : start + per_gather]
            positions = blocks[:, None] * self._block_tokens + np.arange(self._block_tokens)
            is_seen = positions < batch.kv_lens[rows[own_rows], None]
            if window is not None:
                is_seen &= positions >= batch.kv_lens[rows[own_rows], None] - window
            mask = np.where(is_seen, np.float32(0), np.float32(MASKED))
            items.append(
                _DecodeItems(
                    gather=self._gather(batch, rows[own_rows], blocks),
                    rows_W=torch.from_numpy(own_rows),
                    mask_WK1S=torch.from_numpy(np.repeat(mask, self._spec.num_kv_heads, axis=0)[:, None]),
                )
            )
        return _Decodes(
            tokens_B=torch.from_numpy(batch.qo_indptr[rows].astype(np.int64)),
            num_rows_by_block=num_rows_by_block,
            items=tuple(items),
        )

    def _attend_decodes(self, layer: int, q_TNH: Tensor, decodes: _Decodes, out_TNH: Tensor) -> None:
        K, H = self._spec.num_kv_heads, self._spec.head_dim
        q_BNH = q_TNH.index_select(0, decodes.tokens_B).float()
        pieces = []
        for items in decodes.items:
            keys, values = self._read(layer, items.gather)
            q_WKGH = q_BNH.index_select(0, items.rows_W).view(-1, q_BNH.shape[1] // K, H)
            pieces.append(self._partial(q_WKGH, keys, values, items.mask_WK1S))
        partial = pieces[0] if len(pieces) == 1 else _concatenated(pieces)
        running = partial[: decodes.num_rows_by_block[0] * K]
        start = decodes.num_rows_by_block[0] * K
        for num_rows in decodes.num_rows_by_block[1:]:
            running[: num_rows * K].merge_(partial[start : start + num_rows * K])
            start += num_rows * K
        out_TNH.index_copy_(0, decodes.tokens_B, running.result().view(q_BNH.shape).to(out_TNH.dtype))

    # extend: one row, many queries

    def _extend(self, batch: BatchPlan, b: int, window: int | None) -> _Extend:
        kv_len, prefix, start = int(batch.kv_lens[b]), int(batch.prefix_lens[b]), int(batch.qo_indptr[b])
        blocks = np.arange(-(-kv_len // self._block_tokens))
        tiles = tuple(
            _Tile(
                tokens=slice(start + first - prefix, start + end - prefix),
                masks=tuple(self._masks(first, end, window)),
            )
            for first, end in _cut(prefix, kv_len)
        )
        return _Extend(gather=self._gather(batch, np.full(len(blocks), b), blocks), tiles=tiles)

    def _masks(self, first: int, end: int, window: int | None) -> Iterator[Tensor | None]:
        """For queries at positions [first, end), the causal mask [1, G * L, S] of each block up to their own.

        A block before a query's window is masked whole: its partial has the weight 0 beside the query's own position.
        """
        for start in range(0, end, self._block_tokens):
            if start + self._block_tokens <= first + 1 and (window is None or start > end - 1 - window):
                yield None
                continue
            positions, queries = np.arange(start, start + self._block_tokens), np.arange(first, end)[:, None]
            is_seen = positions <= queries
            if window is not None:
                is_seen &= positions > queries - window
            mask_LS = np.where(is_seen, np.float32(0), np.float32(MASKED))
            yield torch.from_numpy(np.tile(mask_LS, (self._spec.num_heads // self._spec.num_kv_heads, 1))[None])

    def _attend_extend(self, layer: int, q_TNH: Tensor, extend: _Extend, out_TNH: Tensor) -> None:
        K, H, S = self._spec.num_kv_heads, self._spec.head_dim, self._block_tokens
        G = q_TNH.shape[1] // K
        keys, values = self._read(layer, extend.gather)
        keys, values = keys.view(-1, K, S, H), values.view(-1, K, S, H)
        for tile in extend.tiles:
            q_LKGH = q_TNH[tile.tokens].view(-1, K, G, H)
            q_KGLH = q_LKGH.permute(1, 2, 0, 3).float().reshape(K, -1, H)
            running: _Partial | None = None
            for block, mask in enumerate(tile.masks):
                partial = self._partial(q_KGLH, keys[block], values[block], mask)
                if running is None:
                    running = partial
                else:
                    running.merge_(partial)
            assert running is not None, "a tile sees at least its own block"
            result_KGLH = running.result().view(K, G, -1, H)
            out_TNH[tile.tokens].view(-1, K, G, H).copy_(result_KGLH.permute(2, 0, 1, 3))

    # both

    def _partial(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> _Partial:
        """Partials of [batch, queries, H] over one block of keys and values [batch, S, H] each."""
        if mask is None:
            scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(self._scale)
        else:
            scores = torch.baddbmm(mask, queries, keys.transpose(1, 2), alpha=self._scale)
        largest = scores.amax(dim=-1, keepdim=True)
        weights = scores.sub_(largest).exp2_()
        return _Partial(largest, weights.sum(dim=-1, keepdim=True), torch.bmm(weights, values))

    def _gather(self, batch: BatchPlan, rows: NDArray[np.int64], blocks: NDArray[np.int64]) -> _Gather:
        """The pages of (row, block) pairs; padding is the blank page."""
        assert self._pool is not None, "make_kv_pool comes first"
        index = (
            batch.kv_indptr[rows, None] + (blocks[:, None] * self._pages_per_block) + np.arange(self._pages_per_block)
        )
        is_page = index < batch.kv_indptr[rows + 1, None]
        pages = np.where(is_page, batch.kv_indices[np.minimum(index, len(batch.kv_indices) - 1)], self._pool.blank_page)
        is_last = index == batch.kv_indptr[rows + 1, None] - 1
        offsets = np.arange(batch.page_tokens)
        is_tail = is_last[:, :, None] & (offsets >= batch.last_page_len[rows, None, None])
        return _Gather(
            pages=torch.from_numpy(pages.astype(np.int64).ravel()),
            tail=torch.from_numpy(np.flatnonzero(is_tail)),
        )

    def _read(self, layer: int, gather: _Gather) -> tuple[Tensor, Tensor]:
        """Keys and values [blocks * K, S, H] in float32; slots behind a row's end are zero."""
        assert self._pool is not None, "make_kv_pool comes first"
        K, H = self._spec.num_kv_heads, self._spec.head_dim
        read = []
        for pool in (self._pool.keys[layer], self._pool.values[layer]):
            pages = pool.flatten(1).index_select(0, gather.pages)
            pages.view(-1, K * H).index_fill_(0, gather.tail, 0)
            blocks = pages.view(-1, self._block_tokens, K, H).transpose(1, 2)
            read.append(
                blocks.to(torch.float32, memory_format=torch.contiguous_format, copy=True).view(
                    -1, self._block_tokens, H
                )
            )
        return read[0], read[1]


def _cut(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut [start, end) at multiples of the tile size."""
    while start < end:
        stop = min(end, (start // TILE_TOKENS + 1) * TILE_TOKENS)
        yield start, stop
        start = stop


def _concatenated(pieces: list[_Partial]) -> _Partial:
    return _Partial(
        torch.cat([piece.largest for piece in pieces]),
        torch.cat([piece.total for piece in pieces]),
        torch.cat([piece.weighted for piece in pieces]),
    )
