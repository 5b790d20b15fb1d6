"""Decode steps as CUDA graphs: captured once for some numbers of rows, replayed for any number up to the largest.

A graph reads and writes the same memory each time. So a step's inputs are copied into static buffers, rows are padded
up to the next captured number with ones that read and write the pool's blank page, and the backend plans anew before
each replay. Knows no rows of requests and no sampling.
"""

# B rows · V vocabulary

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from .attention.backend import GraphBackend
from .batch import BatchPlan
from .kv_pool import KVPool
from .models.model import Model

Handle = TypeVar("Handle")


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Queue it again."""


Capture = Callable[[Callable[[], None]], Graph]
"""Runs the given work at least once, and records it."""


class CudaCapture:
    """Records CUDA graphs in one pool of memory: only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, work: Callable[[], None]) -> Graph:
        """Run the work once, so that libraries set themselves up, then record it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph


@dataclass(frozen=True, slots=True, kw_only=True)
class _Captured(Generic[Handle]):
    graph: Graph
    handle: Handle


class DecodeGraphs(Generic[Handle]):
    """Graphs for steps in which every row decodes."""

    def __init__(
        self,
        model: Model,
        backend: GraphBackend[Handle],
        pool: KVPool,
        *,
        sizes: Sequence[int],
        max_row_pages: int,
        capture: Capture,
    ) -> None:
        self._backend = backend
        self._pool = pool
        self._sizes = sorted(set(sizes))
        largest, device = self._sizes[-1], pool.layers[0].device
        self._token_ids = torch.zeros(largest, dtype=torch.int64, device=device)
        self._positions = torch.zeros(largest, dtype=torch.int64, device=device)
        self._logits = torch.zeros(largest, model.vocabulary, device=device)
        self._captured: dict[int, _Captured[Handle]] = {}
        # The largest first: its memory serves the others.
        for size in reversed(self._sizes):
            handle = backend.begin_capture(_blank_rows(size, pool), max_pages=largest * max_row_pages)
            graph = capture(self._work(model, handle, size))
            self._captured[size] = _Captured(graph=graph, handle=handle)

    def fit(self, batch: BatchPlan) -> bool:
        """Whether the graphs can compute this step."""
        return batch.num_decodes == batch.num_rows <= self._sizes[-1]

    def logits(self, token_ids_B: Tensor, positions_B: Tensor, batch: BatchPlan) -> Tensor:
        """Logits [B, V] of a step's rows, in memory that the next step overwrites; stores their K and V."""
        size = self._sizes[bisect_left(self._sizes, batch.num_rows)]
        captured = self._captured[size]
        self._backend.begin_replay(captured.handle, padded(batch, size, self._pool))
        for static, new in ((self._token_ids, token_ids_B), (self._positions, positions_B)):
            static[: batch.num_rows].copy_(new)
            static[batch.num_rows : size].zero_()
        captured.graph.replay()
        return self._logits[: batch.num_rows]

    def _work(self, model: Model, handle: Handle, size: int) -> Callable[[], None]:
        token_ids, positions, logits = self._token_ids[:size], self._positions[:size], self._logits[:size]

        def work() -> None:
            hidden = model.forward(token_ids, positions, self._backend, handle)
            logits.copy_(model.logits(hidden))

        return work


def padded(batch: BatchPlan, size: int, pool: KVPool) -> BatchPlan:
    """The decode rows with blank ones behind them, `size` in all; `rows` and `sampled` stay those of requests."""
    missing = size - batch.num_rows
    if not missing:
        return batch
    blank = _blank_rows(missing, pool)

    return replace(
        batch,
        num_decodes=size,
        extend_lens=np.concatenate((batch.extend_lens, blank.extend_lens)),
        prefix_lens=np.concatenate((batch.prefix_lens, blank.prefix_lens)),
        kv_lens=np.concatenate((batch.kv_lens, blank.kv_lens)),
        qo_indptr=np.concatenate((batch.qo_indptr, batch.qo_indptr[-1] + blank.qo_indptr[1:])),
        kv_indptr=np.concatenate((batch.kv_indptr, batch.kv_indptr[-1] + blank.kv_indptr[1:])),
        kv_indices=np.concatenate((batch.kv_indices, blank.kv_indices)),
        last_page_len=np.concatenate((batch.last_page_len, blank.last_page_len)),
        token_ids_T=torch.cat((batch.token_ids_T, blank.token_ids_T)),
        positions_T=torch.cat((batch.positions_T, blank.positions_T)),
        out_loc_T=torch.cat((batch.out_loc_T, blank.out_loc_T)),
    )


def _blank_rows(count: int, pool: KVPool) -> BatchPlan:
    """Rows of one token each, at the start of the blank page."""
    ones, zeros, steps = np.ones(count, np.int32), np.zeros(count, np.int32), np.arange(count + 1, dtype=np.int32)
    zeros_T = torch.zeros(count, dtype=torch.int64)
    return BatchPlan(
        page_tokens=pool.page_tokens,
        num_decodes=count,
        rows=np.arange(count),
        sampled=np.arange(count),
        extend_lens=ones,
        prefix_lens=zeros,
        kv_lens=ones,
        qo_indptr=steps,
        kv_indptr=steps,
        kv_indices=np.full(count, pool.blank_page, np.int32),
        last_page_len=ones,
        token_ids_T=zeros_T,
        positions_T=zeros_T,
        out_loc_T=torch.full_like(zeros_T, pool.blank_page * pool.page_tokens),
    )
