"""Sessions: requests that go on one from the other, and each one's chance to find its pages when it comes back.

Recognised by their tokens alone, whatever a client calls them. Knows no text, and decides nothing. Bounded.
"""

from __future__ import annotations

import statistics
from array import array
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from radix.cache import Lease, PrefixCache
from radix.journal import Event, Journal, PageHash, Used, chained
from radix.pages import PageId, Pages, pages_of
from wire.messages.to_tokenizer import Miss
from wire.sessions import Chance, SessionState, SurvivalCounts

from .belt import Belt
from .explain import Explainer
from .request import Request

MAX_SESSIONS = 512
MAX_PAGES = 1 << 20
"""Pages of all sessions' paths, at 12 bytes each; of more, the sessions that were used first go."""

RENDERED_TOKENS = 4
"""How a template begins an answer may differ by so many tokens from how it writes one that was given; questions are
longer, with what a template puts behind them."""

_OWN_PAUSES = 8
_GUESSED = (1 / 8, 3 / 8, 5 / 8, 7 / 8)
"""A session's own pauses stand beside so many of all sessions', these quantiles."""

_GUESS_S = 1.0
"""For so long these quantiles are not looked up again."""


@dataclass(slots=True, eq=False)
class Session:
    """One that ended its last request at `ended_s`, or is running one: then None. The path is that of its last end."""

    request_id: str
    prompt_tokens: int
    num_requests: int = 1
    ended_s: float | None = None
    page_ids: Pages = field(default_factory=pages_of)
    hashes: array[int] = field(default_factory=lambda: array("Q"))
    pauses_s: deque[float] = field(default_factory=lambda: deque(maxlen=_OWN_PAUSES))


class Sessions:
    """The last sessions, the latest last; a listener of a `Journal`."""

    def __init__(self, cache: PrefixCache, journal: Journal, explainer: Explainer, belt: Belt) -> None:
        self._cache = cache
        self._journal = journal
        self._explainer = explainer
        self._belt = belt
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._at_end: dict[PageHash, Session] = {}
        self._num_pages = 0
        self._guessed: list[float] = []
        self._guessed_until_s = 0.0
        journal.subscribe(self.hear)

    def __len__(self) -> int:
        return len(self._sessions)

    def scheduled(self, request: Request, lease: Lease, miss: Miss | None) -> Session:
        """A request has been scheduled for the first time: find the session that it goes on with, or begin one."""
        session = self._continued(request, lease, miss)
        if session is None:
            session = Session(request.request_id, request.prompt_tokens)
        else:
            assert session.ended_s is not None
            session.pauses_s.append(max(0.0, self._journal.clock() - session.ended_s))
            self._forget(session)
            session.request_id, session.prompt_tokens = request.request_id, request.prompt_tokens
            session.num_requests += 1
            session.ended_s = None
        self._sessions[request.request_id] = session
        self._trim()
        return session

    def ended(self, request_id: str) -> None:
        """A request has ended. Of one that has left nothing in the cache no session stays."""
        session = self._sessions.get(request_id)
        if session is not None and session.ended_s is None:
            self._forget(session)

    def hear(self, event: Event) -> None:
        """Note the path that a session's request has left."""
        if not isinstance(event, Used) or (session := self._sessions.get(event.holder)) is None:
            return
        self._set_path(session, event.page_ids)
        session.ended_s = event.time_s
        self._sessions.move_to_end(event.holder)
        self._trim()

    # --- how they stand

    def survival(self, session: Session, now_s: float) -> float | None:
        """The chance that a session, if it comes back, still finds all its pages; None where that can't be told.

        A pause is as likely as the session's own last ones and four more like those of all sessions say.
        """
        belt_s = self._belt.length_s(now_s)
        if belt_s is None:
            return None
        idle_s = 0.0 if session.ended_s is None else now_s - session.ended_s
        if not self._is_whole(session) or idle_s >= belt_s:
            return 0.0
        until_then = self._share_within(session, belt_s)
        until_now = self._share_within(session, idle_s) if idle_s else 0.0
        if until_now is None or until_then is None or until_now >= 1:
            return None
        # It has not come back so far, so only longer pauses count.
        return (until_then - until_now) / (1 - until_now)

    def expected_return_s(self, session: Session, now_s: float) -> float | None:
        """The middle one of the pauses that are expected; counted from the end of its request."""
        if now_s >= self._guessed_until_s:
            found = (self._belt.pauses.shortest_of(share) for share in _GUESSED)
            self._guessed = [each for each in found if each is not None]
            self._guessed_until_s = now_s + _GUESS_S if self._guessed else 0.0
        pauses = [*session.pauses_s, *self._guessed]
        return statistics.median(pauses) if pauses else None

    def chance(self, session: Session) -> Chance:
        """How one stands whose request has just been scheduled."""
        now_s = self._journal.clock()
        return Chance(
            num_requests=session.num_requests,
            expected_return_s=self.expected_return_s(session, now_s),
            survival=self.survival(session, now_s),
        )

    def counts(self) -> SurvivalCounts:
        """How many that are not running stand how."""
        now_s = self._journal.clock()
        counts: Counter[str] = Counter()
        for session in self._sessions.values():
            if session.ended_s is not None:
                counts[_named(self.survival(session, now_s))] += 1
        return SurvivalCounts(**counts)

    def states(self, page: PageId | None) -> tuple[SessionState, ...]:
        """All sessions, or those whose path has the first page of a node of the tree; the latest first."""
        now_s = self._journal.clock()
        return tuple(self._state(each, now_s) for each in self._through(page))

    def _state(self, session: Session, now_s: float) -> SessionState:
        num_cached = 0
        hashes = self._journal.hashes_of(session.page_ids)
        for now, then in zip(hashes.tolist(), session.hashes, strict=True):
            if now != then or not then:
                break
            num_cached += 1
        return SessionState(
            request_id=session.request_id,
            num_requests=session.num_requests,
            prompt_tokens=session.prompt_tokens,
            tokens_in_cache=num_cached * self._cache.page_tokens,
            idle_s=None if session.ended_s is None else max(0.0, now_s - session.ended_s),
            expected_return_s=self.expected_return_s(session, now_s),
            survival=self.survival(session, now_s),
        )

    def _through(self, page: PageId | None) -> list[Session]:
        latest_first = list(reversed(self._sessions.values()))
        if page is None:
            return latest_first
        run = self._cache.run_of(page, 0)
        wanted = None if run is None else self._journal.hash_of_page(page)
        if run is None or wanted is None:
            return []
        index = run.start // self._cache.page_tokens
        return [each for each in latest_first if len(each.hashes) > index and each.hashes[index] == wanted]

    def _share_within(self, session: Session, limit_s: float) -> float | None:
        own = session.pauses_s
        all_of_them = self._belt.pauses.share_within(limit_s)
        if all_of_them is None:
            return sum(pause <= limit_s for pause in own) / len(own) if own else None
        weight = len(_GUESSED)
        return (weight * all_of_them + sum(pause <= limit_s for pause in own)) / (weight + len(own))

    def _is_whole(self, session: Session) -> bool:
        """Whether the last page is cached: the last goes first."""
        return not session.hashes or self._journal.hash_of_page(session.page_ids[-1]) == session.hashes[-1]

    # --- who goes on with which

    def _continued(self, request: Request, lease: Lease, miss: Miss | None) -> Session | None:
        """The session that ends where the lease does, whose rest was evicted, or that parts from it in its answer."""
        before = self._explainer.hash_of_end(lease)
        session = self._at_end.get(before) if before is not None else None
        is_evicted = miss is not None and miss.cause == "evicted"
        if session is None and is_evicted:
            return self._evicted(request, lease)
        if session is None and miss is not None:
            session = self._sessions.get(miss.relative or "")
        if session is None or session.ended_s is None:
            return None
        is_behind_prompt = lease.cached_tokens >= session.prompt_tokens - RENDERED_TOKENS
        return session if is_behind_prompt or is_evicted else None

    def _evicted(self, request: Request, lease: Lease) -> Session | None:
        page_tokens, depth = self._cache.page_tokens, lease.depth
        next_page = request.token_ids[depth : depth + page_tokens].astype("<i4").tobytes()
        before = self._explainer.hash_of_end(lease)
        wanted = chained(before, next_page, page_tokens=page_tokens) if before is not None else []
        index = depth // page_tokens
        if not wanted:
            return None
        for session in reversed(self._sessions.values()):
            if session.ended_s is not None and len(session.hashes) > index and session.hashes[index] == wanted[0]:
                return session
        return None

    # --- keeping

    def _set_path(self, session: Session, page_ids: Pages) -> None:
        self._drop_path(session)
        hashes = array("Q", self._journal.hashes_of(page_ids).tobytes())
        while hashes and not hashes[-1]:
            hashes.pop()  # partly filled, or not in the tree
        session.page_ids, session.hashes = page_ids[: len(hashes)], hashes
        self._num_pages += len(hashes)
        if hashes:
            self._at_end[hashes[-1]] = session

    def _drop_path(self, session: Session) -> None:
        self._num_pages -= len(session.hashes)
        if session.hashes and self._at_end.get(session.hashes[-1]) is session:
            del self._at_end[session.hashes[-1]]

    def _forget(self, session: Session) -> None:
        self._drop_path(session)
        session.page_ids, session.hashes = pages_of(), array("Q")
        del self._sessions[session.request_id]

    def _trim(self) -> None:
        while len(self._sessions) > MAX_SESSIONS or (self._num_pages > MAX_PAGES and len(self._sessions) > 1):
            self._forget(next(iter(self._sessions.values())))


def _named(survival: float | None) -> str:
    if survival is None:
        return "unknown"
    if survival == 0:
        return "gone"
    return "unlikely" if survival < 0.5 else "likely" if survival < 0.9 else "safe"
