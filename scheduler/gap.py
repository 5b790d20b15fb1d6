"""Adds up, per window and namespace, what requests found and what ideal caches would have, for the gap report.

Fed at the first scheduling of each request and at its end. Knows no sockets and no clocks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from radix.cache import Namespace
from radix.ideals import POOL_FACTORS, Found, Ideals
from radix.journal import chained, hash_of_namespace
from wire.gap import Gap, GapReport, GapWindow, Lost
from wire.messages.to_tokenizer import Reuse

from .request import Request
from .salts import salt_digest

WINDOWS_S = (600, 3600)
"""The windows that are told of, beside everything since the start."""

MOST_NAMESPACES = 32
OTHERS = "others"
"""Where the namespaces are counted that came after the first `MOST_NAMESPACES`."""

_MINUTE_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request: its whole pages, those that the cache found, and of these the followed ones; what ideals found."""

    reuse: Reuse
    whole_pages: int
    whole_really: int
    really: int
    found: Found


@dataclass(slots=True)
class Tally:
    """Sums over requests: tokens of their prompts, whole pages, and followed ones; `really` were found by the cache."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    copied_tokens: int = 0
    whole_pages: int = 0
    whole_really: int = 0
    pages: int = 0
    really: int = 0
    seen: float = 0.0
    oracle: int = 0
    flushed: int = 0
    lru: list[int] = field(default_factory=lambda: [0] * len(POOL_FACTORS))

    def add(self, one: Asked) -> None:
        """Count one request."""
        reuse, found = one.reuse, one.found
        self.requests += 1
        self.prompt_tokens += reuse.prompt_tokens
        self.cached_tokens += reuse.cached_tokens
        self.copied_tokens += reuse.copied_tokens
        self.whole_pages += one.whole_pages
        self.whole_really += one.whole_really
        self.pages += found.pages
        self.really += one.really
        self.seen += found.seen
        self.oracle += found.oracle
        self.flushed += found.flushed
        for i, count in enumerate(found.lru):
            self.lru[i] += count

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            requests=self.requests + other.requests,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            copied_tokens=self.copied_tokens + other.copied_tokens,
            whole_pages=self.whole_pages + other.whole_pages,
            whole_really=self.whole_really + other.whole_really,
            pages=self.pages + other.pages,
            really=self.really + other.really,
            seen=self.seen + other.seen,
            oracle=self.oracle + other.oracle,
            flushed=self.flushed + other.flushed,
            lru=[mine + theirs for mine, theirs in zip(self.lru, other.lru, strict=True)],
        )


@dataclass(slots=True)
class Stretch:
    """Sums over a stretch of time that begins with minute `minute`: of all requests, and by namespace."""

    minute: int
    all: Tally = field(default_factory=Tally)
    namespaces: dict[str, Tally] = field(default_factory=dict)

    def add(self, label: str, one: Asked) -> None:
        """Count one request."""
        self.all.add(one)
        self.namespaces.setdefault(label, Tally()).add(one)


@dataclass(slots=True)
class _Open:
    """A request under way: the followed pages of its prompt, and where their hashes go on."""

    sampled: list[int]
    num_pages: int
    last_hash: int


class GapMeter:
    """Everything that the gap report is made of. Of bounded size, whatever comes."""

    def __init__(self, *, num_pages: int, page_tokens: int, began_s: float = 0.0) -> None:
        self._began_s = began_s
        self._num_pages = num_pages
        self._page_tokens = page_tokens
        self._ideals = Ideals(num_pages=num_pages)
        self._open: dict[str, _Open] = {}
        self._total = Stretch(0)
        self._minutes: deque[Stretch] = deque(maxlen=max(WINDOWS_S) // _MINUTE_S)

    def scheduled(self, request: Request, *, now_s: float) -> None:
        """A request has its row for the first time, and its `reuse` says what was found."""
        assert request.reuse is not None
        before = hash_of_namespace(request.namespace)
        # The last token is always computed, so that a page that ends with it can't be found.
        hashes = chained(before, request.prompt_ids[:-1].tobytes(), page_tokens=self._page_tokens)
        whole_really = (request.reuse.cached_tokens - request.reuse.copied_tokens) // self._page_tokens
        really = self._ideals.sample(hashes[:whole_really])
        sampled = really + self._ideals.sample(hashes[whole_really:])
        one = Asked(
            reuse=request.reuse,
            whole_pages=len(hashes),
            whole_really=whole_really,
            really=len(really),
            found=self._ideals.ask(sampled),
        )
        self._open[request.request_id] = _Open(sampled, len(hashes), hashes[-1] if hashes else before)
        label = self._label(request.namespace)
        for stretch in (self._total, self._minute(now_s)):
            stretch.add(label, one)

    def ended(self, request: Request, *, computed_tokens: int) -> None:
        """A request that had been scheduled ends; so much of its prompt and output may stay in the cache."""
        opened = self._open.pop(request.request_id)
        start = opened.num_pages * self._page_tokens
        added = request.token_ids[start:computed_tokens].tobytes()
        more = chained(opened.last_hash, added, page_tokens=self._page_tokens)
        self._ideals.keep(opened.sampled + self._ideals.sample(more))

    def flushed(self) -> None:
        """The cache has been emptied."""
        self._ideals.flush()

    def report(self, *, now_s: float) -> GapReport:
        """All windows up to now."""
        windows = [self._window(seconds, self._last(seconds, now_s)) for seconds in WINDOWS_S]
        return GapReport(
            started_s=max(0.0, now_s - self._began_s),
            pool_tokens=self._num_pages * self._page_tokens,
            page_tokens=self._page_tokens,
            sampled_share=self._ideals.share,
            windows=(*windows, self._window(None, [self._total])),
        )

    def lost(self, *, now_s: float) -> Lost | None:
        """What was lost in the shortest window."""
        stretches = self._last(min(WINDOWS_S), now_s)
        return self._gap(sum((stretch.all for stretch in stretches), Tally())).lost

    def _minute(self, now_s: float) -> Stretch:
        number = int(now_s // _MINUTE_S)
        if not self._minutes or self._minutes[-1].minute != number:
            self._minutes.append(Stretch(number))
        return self._minutes[-1]

    def _last(self, seconds: int, now_s: float) -> list[Stretch]:
        first = int(now_s // _MINUTE_S) - seconds // _MINUTE_S
        return [stretch for stretch in self._minutes if stretch.minute > first]

    def _window(self, seconds: int | None, stretches: list[Stretch]) -> GapWindow:
        labels = dict.fromkeys(label for stretch in stretches for label in stretch.namespaces)
        tallies = {
            label: sum((stretch.namespaces.get(label, Tally()) for stretch in stretches), Tally()) for label in labels
        }
        return GapWindow(
            seconds=seconds,
            all=self._gap(sum((stretch.all for stretch in stretches), Tally())),
            namespaces={label: self._gap(tally) for label, tally in tallies.items()},
        )

    def _label(self, namespace: Namespace) -> str:
        label = "default" if not namespace.salt else salt_digest(namespace.salt)
        return label if label in self._total.namespaces or len(self._total.namespaces) < MOST_NAMESPACES else OTHERS

    def _gap(self, tally: Tally) -> Gap:
        tokens = max(1, tally.prompt_tokens)
        hit = tally.cached_tokens / tokens
        if not tally.pages:
            return Gap(requests=tally.requests, prompt_tokens=tally.prompt_tokens, hit=hit)
        # Copied parts of pages, which an ideal cache of whole pages doesn't know, come on top of each.
        whole = tally.whole_pages * self._page_tokens / tokens
        copied = tally.copied_tokens / tokens

        def share(pages: float) -> float:
            found = self._ideals.found_share(
                pages, really=tally.really, whole_really=tally.whole_really, whole_pages=tally.whole_pages
            )
            return min(1.0, whole * found + copied)

        half, same, double, quadruple = map(share, tally.lru)
        # The estimates may be off by a little; what was found could be found.
        oracle = max(hit, share(tally.oracle))
        ceiling = max(oracle, share(tally.seen))
        restart = min(oracle - hit, tally.flushed / self._ideals.share * self._page_tokens / tokens)
        return Gap(
            requests=tally.requests,
            prompt_tokens=tally.prompt_tokens,
            hit=hit,
            ceiling=ceiling,
            oracle=oracle,
            lru=same,
            lru_half=half,
            lru_double=double,
            lru_quadruple=quadruple,
            lost=Lost(workload=1 - ceiling, capacity=ceiling - oracle, policy=oracle - hit - restart, restart=restart),
        )
