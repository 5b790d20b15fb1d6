"""What has gone from the cache lately, and for whom: so that a miss can be told from something never seen.

Bounded: of more than `capacity` pages the ones that went first are forgotten, and so are pages that have come back.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from .journal import Cleared, Event, PageHash, Removed, Stored, TailRemoved, Used
from .node import TOKEN_BYTES, common_tokens

_PAGES_A_TAIL = 8


class Eviction(NamedTuple):
    """A page went at `time_s`, last used at `used_s`, to make room for `holder`; None: everything was flushed."""

    time_s: float
    used_s: float
    holder: str | None


class History:
    """The last evictions by the page's hash; a listener of a `Journal`. 200 bytes a page.

    Partly filled pages are known by what they followed and their first token, the last one of each; an eighth as many,
    since a request leaves one beside dozens of whole ones.

    >>> history = History(capacity=2)
    >>> history.hear(Cleared(hashes=[1, 2, 3], used_s=[5.0, 6.0, 7.0], time_s=9.0))
    >>> history.find(1), history.find(3)
    (None, Eviction(time_s=9.0, used_s=7.0, holder=None))
    """

    def __init__(self, *, capacity: int) -> None:
        self._capacity = capacity
        self._evictions: OrderedDict[PageHash, Eviction] = OrderedDict()
        self._tails: OrderedDict[tuple[PageHash, bytes], tuple[bytes, Eviction]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._evictions)

    def find(self, page_hash: PageHash) -> Eviction | None:
        """Look up when a page went; None when it didn't, or too long ago. O(1)."""
        return self._evictions.get(page_hash)

    def find_tail(self, before: PageHash, wanted: bytes) -> tuple[int, Eviction] | None:
        """Find a partly filled page that followed `before` and begins like `wanted`: equal tokens, and when it went.

        O(1), and a page.
        """
        tail, eviction = self._tails.get((before, wanted[:TOKEN_BYTES]), (b"", None))
        return None if eviction is None else (common_tokens(tail, wanted), eviction)

    def hear(self, event: Event) -> None:
        """Take notice of what the journal tells. O(pages)."""
        match event:
            case Stored():
                if self._evictions:
                    for page_hash in event.hashes:
                        self._evictions.pop(page_hash, None)
            case Removed():
                self._note(event.hashes, event.used_s, event.time_s, event.holder)
            case Cleared():
                self._note(event.hashes, event.used_s, event.time_s, None)
            case TailRemoved():
                key = event.before, event.tail[:TOKEN_BYTES]
                self._tails.pop(key, None)
                self._tails[key] = event.tail, Eviction(event.time_s, event.used_s, event.holder)
                if len(self._tails) > max(1, self._capacity // _PAGES_A_TAIL):
                    self._tails.popitem(last=False)
            case Used():
                pass

    def _note(self, hashes: list[PageHash], used_s: list[float], time_s: float, holder: str | None) -> None:
        evictions = self._evictions
        for page_hash, used in zip(hashes, used_s, strict=True):
            evictions[page_hash] = Eviction(time_s, used, holder)
        while len(evictions) > self._capacity:
            evictions.popitem(last=False)
