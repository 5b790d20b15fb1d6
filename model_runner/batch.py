"""One step's batch, host first: what attention backends and models read. Knows no scheduler and no sampling."""

# T tokens in batch · B rows

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wire.messages.encoding import TOKEN_BYTES
from wire.messages.to_runner import Chunk, StepPlan

from .errors import FatalError
from .rows import RowTable

Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The rows of a step, in plan order, each with `extend_lens` new tokens behind `prefix_lens` stored ones.

    `rows` are the decoding ones, then those of the chunks; `sampled` indexes those whose last token's logits give a new
    token. The first `num_decodes` rows go on from their last token, which stands as 0 in `token_ids_T`.
    Row b's tokens are [qo_indptr[b], qo_indptr[b + 1]), its pages kv_indices[kv_indptr[b] : kv_indptr[b + 1]],
    the last of them filled to `last_page_len` after this step. The other arrays are host int32; the tensors are what
    the model takes.
    """

    page_tokens: int
    num_decodes: int
    rows: NDArray[np.int64]
    sampled: NDArray[np.int64]
    extend_lens: Int32s
    prefix_lens: Int32s
    kv_lens: Int32s
    qo_indptr: Int32s
    kv_indptr: Int32s
    kv_indices: Int32s
    last_page_len: Int32s
    token_ids_T: Tensor
    positions_T: Tensor
    out_loc_T: Tensor

    @property
    def num_rows(self) -> int:
        """Rows in this step."""
        return len(self.kv_lens)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return int(self.qo_indptr[-1])


def build_batch(table: RowTable, plan: StepPlan, *, vocabulary: int) -> BatchPlan:
    """The batch of a plan whose pages have been appended to its rows; changes nothing.

    Raises:
        FatalError: a row is not live, lacks pages, or its tokens are not what the plan says.
    """
    decodes = np.frombuffer(plan.decodes, np.int32)
    rows = np.concatenate((decodes.astype(np.int64), np.array([chunk.row for chunk in plan.chunks], np.int64)))
    distinct = set(rows.tolist())
    if len(distinct) != len(rows) or not table.sampling.keys() >= distinct:
        raise FatalError(f"the plan runs rows {rows.tolist()}, live are {sorted(table.sampling)}")
    extend = np.ones(len(rows), np.int64)
    extend[len(decodes) :] = [len(chunk.token_ids) // TOKEN_BYTES for chunk in plan.chunks]
    prefix = table.lengths[rows]
    kv_lens = prefix + extend
    if extend.min() < 1 or (kv_lens > table.num_pages[rows] * table.page_tokens).any():
        raise FatalError(f"rows {rows.tolist()} with {kv_lens.tolist()} tokens lack pages, or have nothing to run")

    starts = _indptr(extend)
    row_of_token = np.repeat(np.arange(len(rows)), extend)
    positions = np.arange(starts[-1]) - starts[row_of_token] + prefix[row_of_token]
    pages_of_token = table.pages[rows[row_of_token], positions // table.page_tokens].astype(np.int64)
    num_pages = -(-kv_lens // table.page_tokens)
    page_columns = np.arange(num_pages.max())
    is_sampled = np.ones(len(rows), np.bool_)
    is_sampled[len(decodes) :] = [chunk.is_sampled for chunk in plan.chunks]
    return BatchPlan(
        page_tokens=table.page_tokens,
        num_decodes=len(decodes),
        rows=rows,
        sampled=np.flatnonzero(is_sampled),
        extend_lens=extend.astype(np.int32),
        prefix_lens=prefix.astype(np.int32),
        kv_lens=kv_lens.astype(np.int32),
        qo_indptr=starts.astype(np.int32),
        kv_indptr=_indptr(num_pages).astype(np.int32),
        kv_indices=table.pages[rows, : len(page_columns)][page_columns < num_pages[:, None]],
        last_page_len=(kv_lens - (num_pages - 1) * table.page_tokens).astype(np.int32),
        token_ids_T=torch.from_numpy(_token_ids(len(decodes), plan.chunks, vocabulary)),
        positions_T=torch.from_numpy(positions),
        out_loc_T=torch.from_numpy(pages_of_token * table.page_tokens + positions % table.page_tokens),
    )


class Batches:
    """The batches of one runner's steps; of rows that decode once more, in pages they have, the last one moved on."""

    def __init__(self, table: RowTable, *, vocabulary: int) -> None:
        self._table, self._vocabulary = table, vocabulary
        self._last: BatchPlan | None = None  # if all its rows decode
        self._last_of = (b"", 0)  # its rows, and the table's changes by then

    def build(self, plan: StepPlan) -> BatchPlan:
        """As `build_batch`; the last batch's tokens have been stored.

        Raises:
            FatalError: as `build_batch` does.
        """
        of = (plan.decodes, self._table.num_changes)
        last = self._last if of == self._last_of and not plan.chunks else None
        if last is None or last.last_page_len.max() >= last.page_tokens:
            batch = build_batch(self._table, plan, vocabulary=self._vocabulary)
        else:
            batch = _moved_on(last)
        self._last, self._last_of = None if plan.chunks else batch, of
        return batch


def _moved_on(batch: BatchPlan) -> BatchPlan:
    """The same rows one token later, in the same pages."""
    return replace(
        batch,
        prefix_lens=batch.kv_lens,
        kv_lens=batch.kv_lens + 1,
        last_page_len=batch.last_page_len + 1,
        positions_T=batch.positions_T + 1,
        out_loc_T=batch.out_loc_T + 1,
    )


def _token_ids(num_decodes: int, chunks: Sequence[Chunk], vocabulary: int) -> NDArray[np.int64]:
    pieces = [np.frombuffer(chunk.token_ids, np.int32) for chunk in chunks]
    token_ids = np.concatenate((np.zeros(num_decodes, np.int64), *pieces))
    if token_ids.min() < 0 or token_ids.max() >= vocabulary:
        raise FatalError(f"the plan holds a token id outside of the vocabulary of {vocabulary}")
    return token_ids


def _indptr(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts)))
