"""What ideal caches would have found of each prompt: one that forgets nothing, LRUs of several sizes, an oracle.

Online, and with bounded memory: of all pages only those are followed whose hash falls into a fixed share (spatial
sampling, as in SHARDS), of each pool as many as `sampled_pages` or up to twice that. Eight times as many are followed
at once, and what was used longest ago is forgotten, but for a share of it of which is known that it was seen.

- **LRU**: pages in the order of their last use are a stack; a pool of n pages finds the first n of it. Pages of one
  request were used from the end of the prompt to its start, so that the ends of branches go first.
- **Oracle** (evicts what is used last again): a page is found when from its last use up to this one the pool had a
  place to keep it. Uses come in order, so the room that is left at each moment is a vector: each find lowers it over
  its span (OPTgen: Jain and Lin, ISCA 2016). What a request itself needs is taken off at its own moment.

Moments of little use are one to both (`_Moments`), which shifts distances by 1/256 of a pool at most. Knows hashes of
pages, no tokens, no tree, no time but the order of calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import cast

import numpy as np
import numpy.typing as npt

POOL_FACTORS = (0.5, 1.0, 2.0, 4.0)
"""The sizes of LRUs that are followed, in pools."""

SAMPLED_PAGES = 2048
"""Of a pool that many pages are followed at least, where it has as many."""

_POOLS_FOLLOWED = 8
_LEAST_FOLLOWED = 32768
_MOMENTS_A_POOL = 256
_MOST_MOMENTS = 8192
_MOST_FORGOTTEN = 65536
_NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of one prompt's followed pages: how many there are, and how many each ideal found.

    `seen` were used before; `lru` has one number for each of `POOL_FACTORS`. `flushed` are those that the LRU of the
    pool's own size found and that nobody had used since the last flush.
    """

    pages: int
    seen: float
    lru: tuple[int, ...]
    oracle: int
    flushed: int


class Ideals:
    """Follows what is asked of a pool of `num_pages`.

    >>> ideals = Ideals(num_pages=3)
    >>> one, other = [1, 2], [3, 4]
    >>> [ideals.ask(prompt).oracle for prompt in (one, other, one, other)]
    [0, 0, 1, 1]
    >>> ideals.ask(one).lru
    (0, 1, 2, 2)
    """

    def __init__(
        self, *, num_pages: int, sampled_pages: int = SAMPLED_PAGES, moments_a_pool: int | None = _MOMENTS_A_POOL
    ) -> None:
        """With `moments_a_pool` None each request is a moment of its own."""
        halvings = max(0, (num_pages // sampled_pages).bit_length() - 1)
        self.share = 0.5**halvings
        """The share of pages that are followed."""
        self._mask = (1 << halvings) - 1
        self._pool = max(1, num_pages >> halvings)
        self._pools = tuple(max(1, int(self._pool * factor)) for factor in POOL_FACTORS)
        self._followed = _Followed(max(_POOLS_FOLLOWED * self._pool, _LEAST_FOLLOWED), mask=self._mask)
        self._moments = _Moments(grain=0 if moments_a_pool is None else self._pool // moments_a_pool)
        self._flushed_at = -1

    @property
    def num_followed(self) -> int:
        """How many pages are followed now."""
        return len(self._followed)

    def sample(self, hashes: Sequence[int]) -> list[int]:
        """List those that are followed of a prompt's page hashes, each of everything up to the end of its page."""
        return [page for page in hashes if not page & self._mask] if self._mask else [*hashes]

    def found_share(self, found: float, *, really: int, whole_really: int, whole_pages: int) -> float:
        """Estimate which part of `whole_pages` an ideal found.

        It found `found` of the followed ones, of which the real cache found `really`, and of all pages `whole_really`.
        So only the pages that one found and not the other are estimated: the few that everybody asks for, which are
        followed or not as chance has it, don't count.
        """
        more = (found - really) / self.share
        return min(1.0, max(0.0, (whole_really + more) / max(1, whole_pages)))

    def ask(self, sampled: list[int]) -> Found:
        """A prompt with these followed pages comes: say what each ideal finds, have them used. O(pages + moments)."""
        if not sampled:
            return _NOTHING
        self._enter_moment(len(sampled))
        slots = self._followed.slots(sampled)
        spans = self._followed.spans(slots)
        lru, flushed = self._found_by_lru(spans)
        oracle = self._found_by_oracle(spans)
        seen = len(slots) + self._followed.num_forgotten(sampled[len(slots) :])
        self._use(sampled, slots, spans)
        return Found(pages=len(sampled), seen=seen, lru=lru, oracle=oracle, flushed=flushed)

    def keep(self, sampled: list[int]) -> None:
        """A request ends: the pages of its prompt and of what it has added are used, and were held since it came."""
        if not sampled:
            return
        self._enter_moment(len(sampled))
        slots = self._followed.slots(sampled)
        spans = self._followed.spans(slots)
        for moment, count in spans:
            self._moments.hold_after(moment, count)
        self._use(sampled, slots, spans)

    def flush(self) -> None:
        """The real cache has been emptied; the ideal ones go on."""
        self._make_room()
        self._flushed_at = self._moments.now
        self._moments.begin()

    def _found_by_lru(self, spans: list[tuple[int, int]]) -> tuple[tuple[int, ...], int]:
        """What LRUs of all sizes find, and what the one of the pool's size would have but for the flush."""
        found, flushed = [0] * len(self._pools), 0
        for moment, count in spans:
            newer = self._moments.used_after(moment)
            for i, pool in enumerate(self._pools):
                here = min(count, max(0, pool - newer))
                found[i] += here
                flushed += here if pool == self._pool and moment <= self._flushed_at else 0
        return tuple(found), flushed

    def _found_by_oracle(self, spans: list[tuple[int, int]]) -> int:
        """What could have been kept; of a prompt that is longer than the pool, of its beginning."""
        found = depth = 0
        for moment, count in spans:
            room = self._pool - max(depth, self._moments.most_held_after(moment))
            kept = min(count, max(0, room))
            self._moments.hold_after(moment, kept)
            found += kept
            depth += count
        return found

    def _enter_moment(self, num_pages: int) -> None:
        """Have what comes now belong to a moment of its own, or to the present one where both are small."""
        self._make_room()
        self._moments.enter(num_pages)

    def _make_room(self) -> None:
        if self._moments.is_full:
            renumbered = self._moments.compact()
            self._followed.renumber(renumbered)
            self._flushed_at = int(renumbered[self._flushed_at]) if self._flushed_at >= 0 else -1

    def _use(self, sampled: list[int], slots: list[int], spans: list[tuple[int, int]]) -> None:
        moments, now = self._moments, self._moments.now
        for moment, count in spans:
            moments.used[moment] -= count
        self._followed.use(sampled, slots, now)
        moments.used[now] += len(sampled)
        moments.held[now] = max(moments.held[now], min(len(sampled), self._pool))
        if (excess := self._followed.excess) > 0 and (last := moments.oldest(excess)) < now:
            self._followed.forget(last)
            moments.used[: last + 1] = 0


_NOTHING = Found(pages=0, seen=0, lru=(0,) * len(POOL_FACTORS), oracle=0, flushed=0)


class _Moments:
    """The order of uses.

    `used[m]` counts the followed pages whose last use was moment m, `held[m]` those that the oracle has then.
    """

    def __init__(self, *, grain: int) -> None:
        """Moments of fewer pages than `grain` are joined."""
        self._grain = grain
        self._filled = 0
        self.used = np.zeros(_MOST_MOMENTS, np.int32)
        self.held = np.zeros(_MOST_MOMENTS, np.int32)
        self.now = 0

    @property
    def is_full(self) -> bool:
        """Whether no moment may begin."""
        return self.now + 2 >= _MOST_MOMENTS

    def enter(self, num_pages: int) -> None:
        """Begin a moment, unless this one has room for `num_pages` more."""
        if self._filled + num_pages > self._grain:
            self.begin()
        self._filled += num_pages

    def begin(self) -> None:
        """Begin a moment."""
        self.now += 1
        self._filled = 0

    def used_after(self, moment: int) -> int:
        """Count the followed pages that were used later than in `moment`."""
        return int(np.add.reduce(self.used[moment + 1 : self.now + 1]))

    def most_held_after(self, moment: int) -> int:
        """The most pages that the oracle had at once between `moment` and now, both left out."""
        return int(np.maximum.reduce(self.held[moment + 1 : self.now], initial=0))

    def hold_after(self, moment: int, num_pages: int) -> None:
        """Have the oracle keep so many more between `moment` and now."""
        self.held[moment + 1 : self.now] += np.int32(num_pages)

    def oldest(self, num_pages: int) -> int:
        """The moment up to which at least so many pages were used last."""
        return int(np.searchsorted(self.used[: self.now + 1].cumsum(), num_pages))

    def compact(self) -> npt.NDArray[np.int32]:
        """Make room: moments without pages join the one after them, small neighbours one another.

        Returns the new number of each.
        """
        grain = max(1, self._grain)
        while True:
            renumbered, last = self._joined(grain)
            if last < _MOST_MOMENTS // 2:
                break
            grain *= 2
        used, held = np.zeros(_MOST_MOMENTS, np.int32), np.zeros(_MOST_MOMENTS, np.int32)
        np.add.at(used, renumbered, self.used[: self.now + 1])
        np.maximum.at(held, renumbered, self.held[: self.now + 1])
        self.used, self.held, self.now = used, held, last
        return renumbered

    def _joined(self, grain: int) -> tuple[npt.NDArray[np.int32], int]:
        renumbered = np.zeros(self.now + 1, np.int32)
        number = filled = 0
        for moment, count in enumerate(self.used[: self.now + 1].tolist()):
            if filled and (not count or filled + count > grain):
                number, filled = number + 1, 0
            renumbered[moment] = number
            filled += count
        return renumbered, number


class _Followed:
    """The followed pages, each in a slot with the moment of its last use; and some of those forgotten.

    Where a page is followed, so are all before it: none was used later than they.
    """

    def __init__(self, most: int, *, mask: int) -> None:
        """Of the pages forgotten only those are remembered whose hash has no bit of a mask; it begins as `mask`."""
        self._most = most
        self._slot_of: dict[int, int] = {}
        self._free: list[int] = []
        self._moments = np.empty(0, np.int32)
        self._hashes = np.empty(0, np.uint64)
        self._forgotten: set[int] = set()
        self._forgotten_mask = self._mask = mask

    def __len__(self) -> int:
        return len(self._slot_of)

    @property
    def excess(self) -> int:
        """How many pages are to be forgotten: more than are too many, so that it is seldom."""
        return len(self._slot_of) - self._most + self._most // 32 if len(self._slot_of) > self._most else 0

    def slots(self, hashes: list[int]) -> list[int]:
        """The slots of the first ones of `hashes`, up to one that isn't followed."""
        slots = [*map(self._slot_of.get, hashes)]
        return cast(list[int], slots[: slots.index(None)] if None in slots else slots)

    def spans(self, slots: list[int]) -> list[tuple[int, int]]:
        """The moments of the slots' last use, each with the number of slots in a row that have it."""
        if not slots:
            return []
        return [(moment, len([*run])) for moment, run in groupby(self._moments[slots].tolist())]

    def use(self, hashes: list[int], slots: list[int], moment: int) -> None:
        """Have all of `hashes` be used now; the first ones are in `slots`, the others are followed from now on."""
        if slots:
            self._moments[slots] = moment
        fresh = hashes[len(slots) :]
        if not fresh:
            return
        if len(self._free) < len(fresh):
            self._grow(len(fresh))
        taken = self._free[-len(fresh) :]
        del self._free[-len(fresh) :]
        self._moments[taken] = moment
        self._hashes[taken] = np.array(fresh, np.uint64)
        self._slot_of.update(zip(fresh, taken, strict=True))

    def renumber(self, moments: npt.NDArray[np.int32]) -> None:
        """Give the moments other numbers."""
        taken = self._moments != _NEVER
        self._moments[taken] = moments[self._moments[taken]]

    def forget(self, last: int) -> None:
        """Follow no longer what was last used in moment `last` or before. O(followed pages)."""
        gone = np.flatnonzero(self._moments <= last)
        self._moments[gone] = _NEVER
        hashes = self._hashes[gone].tolist()
        for page in hashes:
            del self._slot_of[page]
        self._free += gone.tolist()
        self._forgotten.update(page for page in hashes if not page & self._forgotten_mask)
        while len(self._forgotten) > _MOST_FORGOTTEN:
            self._forgotten_mask = 2 * self._forgotten_mask + 1
            self._forgotten = {page for page in self._forgotten if not page & self._forgotten_mask}

    def num_forgotten(self, hashes: list[int]) -> float:
        """Estimate how many of `hashes`, none of them followed, were once."""
        known = sum(not page & self._forgotten_mask and page in self._forgotten for page in hashes)
        return known * (self._forgotten_mask + 1) / (self._mask + 1)

    def _grow(self, least: int) -> None:
        old = len(self._moments)
        more = max(least, old, 64)
        self._moments = np.concatenate([self._moments, np.full(more, _NEVER, np.int32)])
        self._hashes = np.concatenate([self._hashes, np.zeros(more, np.uint64)])
        self._free += range(old + more - 1, old - 1, -1)
