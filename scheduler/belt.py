"""The belt: how long what nobody uses stays cached before new tokens push it out, and how likely it is needed by then.

Under least recently used eviction an unused page moves like a case on a conveyor belt: it falls off when as many new
pages have come as the pool holds. Knows no requests and decides nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from radix.cache import PrefixCache
from radix.journal import Event, Journal, Stored

from .pauses import Pauses

WINDOW_S = 300.0
"""The rate of new pages is that of the last so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The belt now; None where too little has happened to tell.

    `belt_s` is how long a page stays from its last use, `next_victim_s` how long ago the page was used that goes next.
    `expected_return_s` is the time within which half of the returning sessions come back; `survival` is the share of
    them that come back within `belt_s`.
    """

    belt_s: float | None
    next_victim_s: float | None
    expected_return_s: float | None
    survival: float | None


class Belt:
    """Counts what comes, and when sessions return; a listener of a `Journal`."""

    def __init__(self, cache: PrefixCache, journal: Journal) -> None:
        self._cache = cache
        self._journal = journal
        self._since_s = journal.clock()
        self._arrived: deque[tuple[float, int]] = deque()
        self._num_arrived = 0
        self.pauses = Pauses()
        journal.subscribe(self.hear)

    def hear(self, event: Event) -> None:
        """Count new pages, by the second."""
        if not isinstance(event, Stored):
            return
        self._num_arrived += len(event.hashes)
        if self._arrived and event.time_s - self._arrived[-1][0] < 1.0:
            at_s, num_pages = self._arrived.pop()
            self._arrived.append((at_s, num_pages + len(event.hashes)))
        else:
            self._arrived.append((event.time_s, len(event.hashes)))
            self._forget(event.time_s)

    def note_return(self, idle_s: float) -> None:
        """Take notice that a session has gone on `idle_s` after its pages were last used."""
        self.pauses.add(idle_s)

    def reading(self) -> Reading:
        """How things stand now. O(1), and a look at the next victim."""
        now_s = self._journal.clock()
        belt_s = self.length_s(now_s)
        victim = self._cache.next_victim()
        return Reading(
            belt_s=belt_s,
            next_victim_s=None if victim is None else max(0.0, now_s - self._journal.used_s(victim)),
            expected_return_s=self.pauses.shortest_of(0.5),
            survival=None if belt_s is None else self.pauses.share_within(belt_s),
        )

    def length_s(self, now_s: float) -> float | None:
        """How long a page stays from its last use; None before the first has come. O(1)."""
        self._forget(now_s)
        seconds = min(WINDOW_S, now_s - self._since_s)
        return self._cache.num_pages * seconds / self._num_arrived if self._num_arrived and seconds > 0 else None

    def _forget(self, now_s: float) -> None:
        while self._arrived and now_s - self._arrived[0][0] > WINDOW_S:
            self._num_arrived -= self._arrived.popleft()[1]
