"""The table of live rows: page tables, lengths, sampling. Follows the plans; decides nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wire.messages.to_runner import Admission
from wire.sampling import SamplingParams

from .errors import FatalError

_GROWTH = 16


class RowTable:
    """Columns indexed by row, so that a step gathers them without a loop over rows."""

    def __init__(self, *, num_pages: int, page_tokens: int) -> None:
        self._pool_pages = num_pages
        self.page_tokens = page_tokens
        self.pages: NDArray[np.int32] = np.zeros((_GROWTH, _GROWTH), np.int32)
        self.num_pages: NDArray[np.int64] = np.zeros(_GROWTH, np.int64)
        self.lengths: NDArray[np.int64] = np.zeros(_GROWTH, np.int64)
        self.sampling: dict[int, SamplingParams] = {}
        self.num_changes = 0
        """Of rows that came or went, and of their pages."""

    def admit(self, admission: Admission) -> None:
        """Begin a row.

        Raises:
            FatalError: the row is live already, or its pages don't hold its cached tokens.
        """
        row = admission.row
        if row in self.sampling or row < 0:
            raise FatalError(f"row {row} is admitted but already live")
        if row >= len(self.lengths):
            self._grow_rows(row + 1)
        self.num_changes += 1
        self.sampling[row] = admission.sampling
        self.num_pages[row] = 0
        self.lengths[row] = admission.num_cached_tokens
        self.append_pages(row, admission.page_ids)
        if admission.num_cached_tokens > self.num_pages[row] * self.page_tokens:
            raise FatalError(f"row {row} has {admission.num_cached_tokens} cached tokens and too few pages for them")

    def release(self, row: int) -> None:
        """End a row; its pages stay as they are."""
        self.num_changes += 1
        if self.sampling.pop(row, None) is None:
            raise FatalError(f"row {row} is released but not live")

    def append_pages(self, row: int, page_ids: bytes) -> None:
        """Add pages to a row's page table."""
        if not page_ids:
            return
        self.num_changes += 1
        new = np.frombuffer(page_ids, np.int32)
        self._check_pages(new, [row])
        start = int(self.num_pages[row])
        end = start + len(new)
        self._widen(end)
        self.pages[row, start:end] = new
        self.num_pages[row] = end

    def append_page_each(self, rows: bytes, page_ids: bytes) -> None:
        """Add one page to each of some rows; both are int32 columns.

        Raises:
            FatalError: a row is not live or named twice, or a page is outside of the pool.
        """
        if not rows:
            return
        self.num_changes += 1
        growing, new = np.frombuffer(rows, np.int32), np.frombuffer(page_ids, np.int32)
        if not self.sampling.keys() >= set(growing.tolist()) or len(set(growing.tolist())) != len(growing):
            raise FatalError(f"rows {growing.tolist()} get pages, live are {sorted(self.sampling)}")
        self._check_pages(new, growing.tolist())
        self._widen(int(self.num_pages[growing].max()) + 1)
        self.pages[growing, self.num_pages[growing]] = new
        self.num_pages[growing] += 1

    def _check_pages(self, page_ids: NDArray[np.int32], rows: list[int]) -> None:
        if page_ids.min() < 0 or page_ids.max() >= self._pool_pages:
            raise FatalError(f"a row of {rows} gets a page outside of the pool's {self._pool_pages} pages")

    def _widen(self, num_pages: int) -> None:
        if num_pages > self.pages.shape[1]:
            wider = max(num_pages, 2 * self.pages.shape[1])
            self.pages = np.pad(self.pages, ((0, 0), (0, wider - self.pages.shape[1])))

    def _grow_rows(self, needed: int) -> None:
        more = max(needed, 2 * len(self.lengths)) - len(self.lengths)
        self.pages = np.pad(self.pages, ((0, more), (0, 0)))
        self.num_pages = np.pad(self.num_pages, (0, more))
        self.lengths = np.pad(self.lengths, (0, more))
