"""Which pages are cached, with their tokens: turns what a journal tells into events, and all of it into a snapshot."""

from __future__ import annotations

import numpy as np

from radix import journal
from radix.node import Namespace

from . import format
from .format import AllBlocksCleared, BlockRemoved, Event


class Held:
    """A listener of a journal. Takes about 4 bytes a token of the pool, and 30 a page.

    `pending` are the events since they were last taken.
    """

    def __init__(self, *, num_pages: int, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._token_ids = np.zeros((num_pages, page_tokens), np.int32)
        self._hashes = np.zeros(num_pages, np.uint64)
        self._parent_hashes = np.zeros(num_pages, np.uint64)
        self._namespaces = np.full(num_pages, None, object)
        self._serials = np.zeros(num_pages, np.int64)
        self._next_serial = 1
        self.pending: list[Event] = []

    def hear(self, event: journal.Event) -> None:
        """Take notice of pages that have come or gone."""
        match event:
            case journal.Stored():
                self._store(event)
            case journal.Removed():
                pages = np.frombuffer(event.page_ids, np.int32)
                self._serials[pages] = 0
                self._namespaces[pages] = None
                self.pending.append(BlockRemoved(block_hashes=event.hashes, medium=format.MEDIUM))
            case journal.Cleared():
                self._serials[:] = 0
                self._namespaces[:] = None
                self.pending.append(AllBlocksCleared())

    def take(self) -> list[Event]:
        """What has happened since the last call."""
        taken, self.pending = self.pending, []
        return taken

    def snapshot(self) -> list[Event]:
        """The events that make an index of anything one of what is cached now. O(pages of the pool).

        A page is stored after the one before it and never outlives it, so that the order of storing is one in which
        each comes behind its parent.
        """
        pages = np.flatnonzero(self._serials)
        pages = pages[np.argsort(self._serials[pages])]
        follows = self._parent_hashes[pages[1:]] == self._hashes[pages[:-1]]
        runs = np.split(pages, np.flatnonzero(~follows) + 1) if len(pages) else []
        return [AllBlocksCleared(), *map(self._event, runs)]

    def _store(self, event: journal.Stored) -> None:
        pages = np.frombuffer(event.page_ids, np.int32)
        self._token_ids[pages] = np.frombuffer(event.token_ids, np.int32).reshape(len(pages), -1)
        self._hashes[pages] = event.hashes
        self._parent_hashes[pages] = [event.parent_hash or 0, *event.hashes[:-1]]
        namespace = np.empty((), object)
        namespace[()] = event.namespace  # a value; given as it is, numpy would take the tuple for a row of values
        self._namespaces[pages] = namespace
        self._serials[pages] = np.arange(self._next_serial, self._next_serial + len(pages))
        self._next_serial += len(pages)
        self.pending.append(self._event(pages))

    def _event(self, pages: np.ndarray) -> Event:
        namespace: Namespace = self._namespaces[pages[0]]
        return format.stored(
            hashes=self._hashes[pages].tolist(),
            parent_hash=int(self._parent_hashes[pages[0]]) or None,
            token_ids=self._token_ids[pages].ravel(),
            page_tokens=self._page_tokens,
            salt=namespace.salt,
            adapter=namespace.adapter,
        )
