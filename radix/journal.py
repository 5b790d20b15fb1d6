"""Which pages are cached, by a hash that others can compute too: what events, histories and reports are made of.

The hash of a page is `xxh3_64(token ids of the page as little-endian int32, seed=hash of the page before it)`; before
a namespace's first page comes `xxh3_64(json([model, adapter, salt]))` (`hash_of_namespace`). So equal hashes mean equal
tokens from the start, up to collisions of 64 bits: good for telling and guessing, never for sharing KV. Knows no
requests and no sockets, and nothing of how the tree is made.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from .cache import PrefixCache
from .node import TOKEN_BYTES, Namespace
from .pages import PageId, Pages

PageHash: TypeAlias = int
"""Never 0: that stands for no page."""


class Stored(Struct, frozen=True, kw_only=True):
    """Pages have entered the cache, one behind the other; `holder`'s lease has computed them.

    `parent_hash` is that of the page before the first; None at the root of the namespace.
    """

    namespace: Namespace
    parent_hash: PageHash | None
    hashes: list[PageHash]
    page_ids: Pages
    token_ids: bytes
    holder: str
    time_s: float


class Removed(Struct, frozen=True, kw_only=True):
    """Pages have left the cache, to make room for `holder`; each was last used at its `used_s`.

    Room that is made ahead of need counts for whoever took pages last.
    """

    hashes: list[PageHash]
    page_ids: Pages
    used_s: list[float]
    holder: str
    time_s: float


class Cleared(Struct, frozen=True, kw_only=True):
    """Everything was forgotten: the pages of `hashes`, each last used at its `used_s`."""

    hashes: list[PageHash]
    used_s: list[float]
    time_s: float


class TailRemoved(Struct, frozen=True, kw_only=True):
    """A partly filled page has left, of the tokens `tail`; `before` is the hash of what they followed.

    `holder` is None when everything was forgotten.
    """

    before: PageHash
    tail: bytes
    used_s: float
    holder: str | None
    time_s: float


class Used(Struct, frozen=True, kw_only=True):
    """The lease of `holder` has ended, whose path these pages were; the last one may be partly filled."""

    page_ids: Pages
    holder: str
    time_s: float


Event = Stored | Removed | Cleared | TailRemoved | Used
Listener: TypeAlias = Callable[[Event], None]


class Journal:
    """Keeps the hash of every whole page in a cache, and tells its listeners of what comes and goes, in order.

    Until somebody subscribes the cache isn't observed and nothing is kept. Listeners are called during the cache's own
    operations: they take notes and return. `holder` is who has taken or given pages last. Times are `clock`'s.

    >>> cache = PrefixCache(num_pages=4, page_tokens=2)
    >>> journal, heard = Journal(cache), []
    >>> journal.subscribe(heard.append)
    >>> chat, tokens = Namespace("model", None, ""), np.array([1, 2, 3, 4], np.int32)
    >>> lease = cache.lease(chat, tokens, max_reuse_tokens=3)
    >>> cache.release(lease, tokens[: 2 * len(cache.extend(lease, 4))])
    >>> heard[0].hashes == chained(hash_of_namespace(chat), tokens.tobytes(), page_tokens=2)
    True
    >>> sorted(heard[0].hashes) == sorted(journal.hashes())
    True
    """

    def __init__(self, cache: PrefixCache, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.page_tokens = cache.page_tokens
        self.holder = ""
        self.clock = clock
        self._cache = cache
        self._listeners: list[Listener] = []
        self._hash_of_page: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._used_s: npt.NDArray[np.float64] = np.zeros(0, np.float64)
        self._tails: dict[PageId, tuple[PageHash, bytes]] = {}

    @property
    def is_kept(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def subscribe(self, listener: Listener) -> None:
        """Tell `listener` of every change from now on; the first one comes while the cache is still empty."""
        if not self._listeners:
            assert not self._cache.cached_pages, "pages that were cached before have no hashes"
            self._hash_of_page = np.zeros(self._cache.num_pages, np.uint64)
            self._used_s = np.zeros(self._cache.num_pages, np.float64)
            self._cache.observe(self)
        self._listeners.append(listener)

    def hashes(self) -> list[PageHash]:
        """List the hashes of all whole pages that are cached, in no order. O(pages of the pool)."""
        return [int(each) for each in self._hash_of_page[self._hash_of_page != 0]]

    def hash_of_page(self, page: PageId) -> PageHash | None:
        """Look up the hash of a whole cached page."""
        return int(self._hash_of_page[page]) or None

    def hashes_of(self, page_ids: Pages) -> npt.NDArray[np.uint64]:
        """Look up the hashes of pages; 0 for one that isn't a whole cached page."""
        return self._hash_of_page[_indices(page_ids)]

    def used_s(self, page: PageId) -> float:
        """Look up when a cached page was last used: when it entered, or when a request that had it ended."""
        return float(self._used_s[page])

    # --- what the cache tells

    def acting(self, holder: str) -> None:
        """Note who takes or gives pages."""
        self.holder = holder

    def stored(self, namespace: Namespace, parent_page: PageId | None, page_ids: Pages, token_ids: bytes) -> None:
        """Chain the hashes of new pages and tell of them."""
        parent_hash = None if parent_page is None else self.hash_of_page(parent_page)
        before = hash_of_namespace(namespace) if parent_hash is None else parent_hash
        hashes = chained(before, token_ids, page_tokens=self.page_tokens)
        now_s = self.clock()
        self._hash_of_page[_indices(page_ids)] = hashes
        self._used_s[_indices(page_ids)] = now_s
        if self._tails:
            for page in page_ids:
                self._tails.pop(page, None)
        self._tell(
            Stored(
                namespace=namespace,
                parent_hash=parent_hash,
                hashes=hashes,
                page_ids=page_ids,
                token_ids=token_ids,
                holder=self.holder,
                time_s=now_s,
            )
        )

    def removed(self, page_ids: Pages) -> None:
        """Forget the hashes of pages and tell of them; those without one were only partly filled."""
        indices = _indices(page_ids)
        is_whole = self._hash_of_page[indices] != 0
        if not is_whole.all():
            self._tell_of_tails(indices[~is_whole].tolist(), self.holder)
            indices = indices[is_whole]
        if not len(indices):
            return
        event = Removed(
            hashes=self._hash_of_page[indices].tolist(),
            page_ids=array("i", indices.tobytes()),
            used_s=self._used_s[indices].tolist(),
            holder=self.holder,
            time_s=self.clock(),
        )
        self._hash_of_page[indices] = 0
        self._tell(event)

    def used(self, namespace: Namespace, page_ids: Pages, tail: bytes) -> None:
        """Note when pages were last used, what the last one holds if it's partly filled, and tell of it."""
        now_s = self.clock()
        self._used_s[_indices(page_ids)] = now_s
        if tail:
            before = hash_of_namespace(namespace) if len(page_ids) == 1 else self.hash_of_page(page_ids[-2])
            if before is not None:
                self._tails[page_ids[-1]] = before, tail
        self._tell(Used(page_ids=page_ids, holder=self.holder, time_s=now_s))

    def cleared(self) -> None:
        """Forget all hashes and tell so."""
        self._tell_of_tails(list(self._tails), None)
        held = self._hash_of_page != 0
        event = Cleared(
            hashes=self._hash_of_page[held].tolist(), used_s=self._used_s[held].tolist(), time_s=self.clock()
        )
        self._hash_of_page[:] = 0
        self._tell(event)

    def _tell_of_tails(self, pages: list[PageId], holder: str | None) -> None:
        now_s = self.clock()
        for page in pages:
            if (known := self._tails.pop(page, None)) is not None:
                before, tail = known
                used_s = self.used_s(page)
                self._tell(TailRemoved(before=before, tail=tail, used_s=used_s, holder=holder, time_s=now_s))

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)


def hash_of_namespace(namespace: Namespace) -> PageHash:
    """What the first page of a namespace is chained to: the hash of `["model",null,"salt"]` as compact UTF-8 JSON."""
    return xxh3_64_intdigest(msgspec.json.encode(list(namespace))) or 1


def chained(before: PageHash, token_ids: bytes, *, page_tokens: int) -> list[PageHash]:
    """The hashes of the whole pages of `token_ids`, which follow what has the hash `before`. O(tokens).

    >>> chained(1, bytes(16), page_tokens=2) == chained(1, bytes(23), page_tokens=2)
    True
    """
    page_bytes = page_tokens * TOKEN_BYTES
    hashes = []
    for offset in range(0, len(token_ids) - page_bytes + 1, page_bytes):
        before = xxh3_64_intdigest(token_ids[offset : offset + page_bytes], before) or 1
        hashes.append(before)
    return hashes


def _indices(page_ids: Pages) -> npt.NDArray[np.int32]:
    return np.frombuffer(page_ids, np.int32) if page_ids else np.zeros(0, np.int32)
