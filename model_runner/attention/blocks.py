"""The KV pool read in blocks at fixed absolute positions: which pages a block needs, and their K and V.

Knows no queries and no masks.
"""

# K kv heads · H head dim

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_runner.batch import BatchPlan
from model_runner.kv_pool import KVPool

from .backend import AttentionSpec, make_slot_pool

_BLOCK_TOKENS = 256
_WIDTH_TOKENS = 64
"""A row's last block is read only as far as the row fills it, rounded up to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Pages to read, in the order of their positions, and the slots behind a row's end, to be cleared."""

    pages: Tensor
    tail: Tensor


class Blocks:
    """The pool and how it is cut."""

    def __init__(self, spec: AttentionSpec) -> None:
        self.spec = spec
        self.pages_per_block = max(1, round(_BLOCK_TOKENS / spec.page_tokens))
        self.tokens = self.pages_per_block * spec.page_tokens
        self._width_pages = max(1, _WIDTH_TOKENS // spec.page_tokens)
        self._pool: KVPool | None = None
        self._gathered = torch.empty(0, dtype=spec.dtype)

    @property
    def pool(self) -> KVPool:
        """The pool, once made."""
        assert self._pool is not None, "make_pool comes first"
        return self._pool

    def make_pool(self, num_pages: int) -> KVPool:
        """Allocate the pool."""
        self._pool = make_slot_pool(self.spec, num_pages, torch.device("cpu"))
        return self._pool

    def count(self, kv_lens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Blocks that rows of these lengths reach into."""
        return -(-kv_lens // self.tokens)

    def first_seen(self, positions: NDArray[np.int32], window: int | None) -> NDArray[np.int32]:
        """The first block that queries at these positions see anything of."""
        if window is None:
            return np.zeros_like(positions)
        return (positions + 1 - window).clip(min=0) // self.tokens

    def num_pages(self, kv_lens: NDArray[np.int32], blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Pages to read of rows' blocks: all, or in a last block as many as the row fills, rounded up."""
        filled = -(-(kv_lens - blocks * self.tokens) // self.spec.page_tokens)
        rounded: NDArray[np.int64] = -(-filled // self._width_pages) * self._width_pages
        return rounded.clip(max=self.pages_per_block)

    def gather(self, batch: BatchPlan, rows: NDArray[np.int64], blocks: NDArray[np.int64], num_pages: int) -> Gather:
        """`num_pages` pages from the start of (row, block) pairs on; padding is the blank page."""
        index = batch.kv_indptr[rows, None] + (blocks[:, None] * self.pages_per_block) + np.arange(num_pages)
        ends = batch.kv_indptr[rows + 1, None]
        pages = np.where(
            index < ends, batch.kv_indices[np.minimum(index, len(batch.kv_indices) - 1)], self.pool.blank_page
        )
        places = np.flatnonzero(index == ends - 1)
        offsets = np.arange(batch.page_tokens)
        is_tail = offsets >= batch.last_page_len[rows[places // num_pages], None]
        return Gather(
            pages=torch.from_numpy(pages.astype(np.int64).ravel()),
            tail=torch.from_numpy((places[:, None] * batch.page_tokens + offsets)[is_tail]),
        )

    def read(self, layer: int, gather: Gather) -> tuple[Tensor, Tensor]:
        """Keys and values [slots, K, H] in float32, views that hold until the next read; behind a row's end is zero."""
        pages = self.pool.layers[layer].flatten(1)
        num_elements = len(gather.pages) * pages.shape[1]
        if self._gathered.numel() < num_elements:
            self._gathered = torch.empty(num_elements, dtype=pages.dtype)
        gathered = self._gathered[:num_elements].view(-1, pages.shape[1])
        torch.index_select(pages, 0, gather.pages, out=gathered)
        kv = gathered.view(-1, 2, self.spec.num_kv_heads, self.spec.head_dim)
        if len(gather.tail):
            kv.index_fill_(0, gather.tail, 0)
        keys, values = kv.float().unbind(1)
        return keys, values
