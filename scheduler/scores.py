"""Logprobs of the tokens in the pool's pages, so that a prompt's can be told again without computing it again.

A token's logprob depends on the tokens before it only, as its KV does: so it's kept beside the page that holds the
token, is good for whoever finds that page in the cache, and goes when the page is given out anew. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from radix.cache import PageId, Pages

Logprobs = npt.NDArray[np.float32]


class Scores:
    """One float32 for each slot of each page. Takes memory from the first `write` on, page by page as it's used.

    >>> from radix.pages import pages_of
    >>> scores = Scores(num_pages=4, page_tokens=2)
    >>> scores.write(pages_of([3, 1]), np.array([-1.5, -0.5], np.float32), first=1)
    >>> scores.read(pages_of([3, 1]), first=1, stop=4).tolist(), len(scores.read(pages_of([3, 1]), first=0, stop=4))
    ([-1.5, -0.5], 0)
    >>> scores.copy(1, 2, num_tokens=1); scores.clear([3])
    >>> len(scores.read(pages_of([3, 2]), first=1, stop=4)), scores.read(pages_of([0, 2]), first=2, stop=4).tolist()
    (0, [-0.5])
    """

    def __init__(self, *, num_pages: int, page_tokens: int) -> None:
        self._shape = (num_pages, page_tokens)
        self._page_tokens = page_tokens
        # The complement of a float's bits, so that zero, which costs no memory until it's written over, is no number.
        self._inverted_bits: npt.NDArray[np.int32] | None = None

    @property
    def is_used(self) -> bool:
        """Whether anything was ever written."""
        return self._inverted_bits is not None

    def write(self, page_ids: Pages, logprobs: Logprobs, *, first: int) -> None:
        """Keep logprobs of the tokens from position `first` on; `page_ids` hold all tokens from position 0 on."""
        if self._inverted_bits is None:
            self._inverted_bits = np.zeros(self._shape, np.int32)
        pages, offset = self._pages(page_ids, first, first + len(logprobs))
        bits = self._inverted_bits[pages]
        bits.reshape(-1)[offset : offset + len(logprobs)] = ~np.ascontiguousarray(logprobs, np.float32).view(np.int32)
        self._inverted_bits[pages] = bits

    def read(self, page_ids: Pages, *, first: int, stop: int) -> Logprobs:
        """Logprobs from position `first` on, up to `stop` or the first that is not known."""
        if self._inverted_bits is None or first >= stop:
            return np.empty(0, np.float32)
        pages, offset = self._pages(page_ids, first, stop)
        logprobs: Logprobs = (~self._inverted_bits[pages].reshape(-1)[offset : offset + stop - first]).view(np.float32)
        unknown = np.isnan(logprobs)
        return logprobs[: int(unknown.argmax())] if unknown.any() else logprobs

    def copy(self, source: PageId, destination: PageId, *, num_tokens: int) -> None:
        """Know of a page's copy what is known of the first tokens of its source."""
        if self._inverted_bits is not None:
            self._inverted_bits[destination] = 0
            self._inverted_bits[destination, :num_tokens] = self._inverted_bits[source, :num_tokens]

    def add(self, source: PageId, destination: PageId) -> None:
        """Know of an equal page also what is known of its like."""
        if self._inverted_bits is not None:
            known = self._inverted_bits[source] != 0
            self._inverted_bits[destination, known] = self._inverted_bits[source, known]

    def clear(self, page_ids: Iterable[PageId]) -> None:
        """Forget pages that are given out: what they held is not what they will hold."""
        if self._inverted_bits is not None:
            for page in page_ids:
                self._inverted_bits[page] = 0

    def _pages(self, page_ids: Pages, first: int, stop: int) -> tuple[npt.NDArray[np.int32], int]:
        """The pages of the positions [first, stop), and where in them these begin."""
        first_page, offset = divmod(first, self._page_tokens)
        return np.array(page_ids[first_page : -(-stop // self._page_tokens)], np.int32), offset
