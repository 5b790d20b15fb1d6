"""Why a prompt's first token that was not reused was not: the cause, as far as integers tell, at first scheduling.

Knows no text, so it can't tell a changed prompt from a new one: both are `forked`, and the tokenizer process, which
knows the prompt's parts, says which. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from radix.cache import Lease, Namespace, PrefixCache
from radix.history import Eviction, History
from radix.journal import Event, Journal, PageHash, Stored, Used, chained, hash_of_namespace
from radix.pages import PageId
from wire.messages.encoding import TOKEN_BYTES
from wire.messages.to_tokenizer import Evicted, Miss, MissCause

from .request import Request, Running

FORK_TOKENS = 16
"""Tokens that are shown of both sides of a fork, at most."""

HISTORY_PAGES = 65536
"""Evicted pages that are remembered, at most: 13 MB. A small pool's history is of two turnovers."""

_NAMESPACES = 8
"""In so many other namespaces, those that stored pages last, a missing prefix is looked for."""


class Explainer:
    """Finds causes of misses in what the journal has told. About 20 us a request."""

    def __init__(self, cache: PrefixCache, journal: Journal) -> None:
        self._cache = cache
        self._journal = journal
        self._history = History(capacity=min(2 * cache.num_pages, HISTORY_PAGES))
        self._authors = [""] * cache.num_pages
        self._namespaces: dict[Namespace, None] = {}
        journal.subscribe(self._history.hear)
        journal.subscribe(self._hear)

    def explain(self, request: Request, lease: Lease, others: Iterable[Running]) -> Miss | None:
        """Say why no more of a prompt than `lease` holds was found; None when all of it was that can be.

        `others` are the requests whose prompts are being computed.
        """
        position, num_found = lease.cached_tokens, lease.depth
        if position >= request.num_tokens - 1:
            return None
        given = request.token_ids[position : position + FORK_TOKENS].astype("<i4").tobytes()
        relative, expected = self._beyond(lease)
        if request.next_logprob is not None and self._found(request) > position:
            return _miss("bypassed", position, given, expected, relative)
        if (leader := self._in_flight(request, lease, others)) is not None:
            return _miss("in_flight", position, given, expected, leader)
        next_page = request.token_ids[num_found : num_found + self._cache.page_tokens]
        if (eviction := self._evicted(lease, next_page.astype("<i4").tobytes())) is not None:
            return _miss("evicted", position, given, expected, relative, evicted=self._told(eviction))
        if (field := self._elsewhere(request, num_found)) is not None:
            return _miss("namespace", position, given, expected, relative, namespace=field)
        # Only where no page was free was there none for a copy.
        if expected and not self._cache.free_pages and self._found(request) > position:
            return _miss("too_short", position, given, expected, relative)
        return _miss("forked" if expected else "never_seen", position, given, expected, relative)

    def idle_s(self, lease: Lease) -> float | None:
        """How long ago the last of a new lease's cached pages had been used; None without one."""
        page = lease.place.page
        return None if page is None else max(0.0, self._journal.clock() - self._journal.used_s(page))

    def returned_s(self, lease: Lease, miss: Miss | None) -> float | None:
        """How long ago a session that goes on with this lease was used last; None when it is a new one.

        One goes on when it continues what is cached at its end, or what was evicted.
        """
        if miss is not None and miss.evicted is not None:
            return miss.evicted.ago_s + miss.evicted.idle_s
        return self.idle_s(lease) if miss is None or not miss.expected_ids else None

    def _hear(self, event: Event) -> None:
        if isinstance(event, Used) and event.page_ids and self._journal.hash_of_page(event.page_ids[-1]) is None:
            self._authors[event.page_ids[-1]] = event.holder  # partly filled, so that it was not stored
        if not isinstance(event, Stored):
            return
        for page in event.page_ids:
            self._authors[page] = event.holder
        if next(reversed(self._namespaces), None) != event.namespace:
            self._namespaces.pop(event.namespace, None)
            self._namespaces[event.namespace] = None
            if len(self._namespaces) > _NAMESPACES + 1:
                del self._namespaces[next(iter(self._namespaces))]

    def author_of(self, page: int) -> str | None:
        """Name the request that computed a cached page; None where that is not known."""
        return self._authors[page] or None

    def _beyond(self, lease: Lease) -> tuple[str, bytes]:
        """Who has computed what is cached where a lease's tokens end, or else the last of those; and what it is."""
        if (tail := self._cache.beyond_tail(lease, FORK_TOKENS)) is not None:
            return tail
        page, expected = self._cache.beyond(lease, FORK_TOKENS)
        last = lease.place.page if page is None else page
        return "" if last is None else self._authors[last], expected

    def _in_flight(self, request: Request, lease: Lease, others: Iterable[Running]) -> str | None:
        """The request that was computing the next whole page, behind the same cached ones; None when nobody was."""
        first, stop = lease.depth, lease.depth + self._cache.page_tokens
        last = lease.place.page
        wanted = request.token_ids[first:stop].tobytes()
        if len(wanted) < self._cache.page_tokens * TOKEN_BYTES:
            return None
        for other in others:
            if other.computed_tokens >= min(stop, other.target_tokens) or other.request is request:
                continue
            if other.request.namespace != request.namespace or not _is_behind(other.lease, last, first):
                continue
            if other.request.token_ids[first:stop].tobytes() == wanted:
                return other.request.request_id
        return None

    def _evicted(self, lease: Lease, rest: bytes) -> Eviction | None:
        """When what follows a lease's whole pages went, and would have given more tokens than it has now."""
        before = self.hash_of_end(lease)
        if before is None:
            return None
        if len(rest) == self._cache.page_tokens * TOKEN_BYTES:
            (page_hash,) = chained(before, rest, page_tokens=self._cache.page_tokens)
            if (eviction := self._history.find(page_hash)) is not None:
                return eviction
        num_tokens, eviction = self._history.find_tail(before, rest) or (0, None)
        return eviction if num_tokens > lease.cached_tokens - lease.depth else None

    def hash_of_end(self, lease: Lease) -> PageHash | None:
        """What the next page of a lease would be chained to; None where a flush took it."""
        last = lease.place.page
        return hash_of_namespace(lease.namespace) if last is None else self._journal.hash_of_page(last)

    def _found(self, request: Request) -> int:
        """Count the tokens that could be had if nobody wanted their logprobs."""
        return self._cache.match(request.namespace, request.token_ids[:-1])

    def _told(self, eviction: Eviction) -> Evicted:
        return Evicted(
            ago_s=self._journal.clock() - eviction.time_s,
            idle_s=eviction.time_s - eviction.used_s,
            made_room_for=eviction.holder,
        )

    def _elsewhere(self, request: Request, num_found: int) -> Literal["salt", "adapter", "weights"] | None:
        """The field in which a namespace differs that has the next page too; None when no recent one has it."""
        wanted = request.token_ids[: num_found + self._cache.page_tokens]
        if len(wanted) < num_found + self._cache.page_tokens:
            return None
        for other in reversed(self._namespaces):
            if other != request.namespace and self._cache.match_pages(other, wanted) > num_found:
                own = request.namespace
                return "weights" if other.model != own.model else "adapter" if other.adapter != own.adapter else "salt"
        return None


def _is_behind(lease: Lease, last: PageId | None, depth: int) -> bool:
    """Whether a lease's path has the page `last` up to `depth`."""
    if last is None:
        return True
    index = depth // lease.page_tokens - 1
    return index < len(lease.page_ids) and lease.page_ids[index] == last


def _miss(
    cause: MissCause,
    position: int,
    given: bytes,
    expected: bytes,
    relative: str,
    *,
    evicted: Evicted | None = None,
    namespace: Literal["salt", "adapter", "weights"] | None = None,
) -> Miss:
    return Miss(
        cause=cause,
        position=position,
        given_ids=given,
        expected_ids=expected,
        relative=relative or None,
        evicted=evicted,
        namespace=namespace,
    )
