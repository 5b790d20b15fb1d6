"""The last requests of this tokenizer: what each was, what was reused of it, and why no more. Bounded.

Who changed what is judged as soon as the scheduler has told of a miss, from what both clients have sent; everything
that takes longer (texts, borders of parts) is made when somebody asks. Knows no HTTP.
"""

from __future__ import annotations

import logging
import random
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from wire.messages.encoding import TOKEN_BYTES
from wire.messages.to_tokenizer import Miss, Reuse

from .chat_changes import NEW, Verdict, compare
from .chat_source import ChatSource
from .text.shared import num_shared

log = logging.getLogger(__name__)

MAX_RECORDS = 512
MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Prompts, texts and answers of the records, about; of more, the oldest records go."""

_CANDIDATES = 32
"""So many of the latest records are looked at for a request of which this tokenizer doesn't know the nearest one."""

_ALIKE_TOKENS = 8
"""A shorter common end says nothing."""


class Record:
    """One request, whose prompt has the tokens `token_ids` (int32).

    `verdict` is there from its first scheduling on when the miss was at a fork.
    """

    __slots__ = (
        "arrived_at", "ended", "first_token_s", "is_settled", "latency_s", "output_bytes", "output_ids", "request_id",
        "reuse", "salt", "source", "source_bytes", "token_ids", "verdict",
    )  # fmt: skip

    def __init__(self, request_id: str, token_ids: bytes, salt: str, source: ChatSource | None) -> None:
        self.request_id = request_id
        self.token_ids = token_ids
        self.salt = salt
        self.source = source
        self.source_bytes = 0 if source is None else source.num_bytes
        self.arrived_at = time.time()
        self.output_ids: Sequence[int] = []
        self.output_bytes = 0
        self.reuse: Reuse | None = None
        self.verdict: Verdict | None = None
        self.is_settled = False
        self.first_token_s: float | None = None
        self.latency_s: float | None = None
        self.ended: str | None = None

    def end(self, reason: str, latency_s: float, first_token_s: float | None) -> None:
        """Note how and when the answer ended, counted from its request's arrival, and keep it in little memory."""
        self.ended, self.latency_s, self.first_token_s = reason, latency_s, first_token_s
        self.output_ids = array("i", self.output_ids)
        self.output_bytes = len(self.output_ids) * TOKEN_BYTES

    @property
    def miss(self) -> Miss | None:
        """What the scheduler has told of the first token that was not reused."""
        return None if self.reuse is None else self.reuse.miss

    @property
    def cause(self) -> str | None:
        """The cause of the miss; None without one."""
        miss = self.miss
        if miss is None:
            return None
        return self.verdict.cause if self.verdict is not None else miss.cause

    @property
    def num_tokens(self) -> int:
        """The prompt's length."""
        return len(self.token_ids) // TOKEN_BYTES

    @property
    def missed_tokens(self) -> int:
        """Prompt tokens that were computed, from the first that was not found on; the last one alone is no miss."""
        if self.reuse is None:
            return 0
        if self.miss is not None:
            return self.num_tokens - self.miss.position
        return max(0, self.num_tokens - 1 - self.reuse.cached_tokens)

    @property
    def num_bytes(self) -> int:
        """About what it keeps in memory."""
        return len(self.token_ids) + self.source_bytes + self.output_bytes


class Records:
    """The last requests, by id. `decode` makes text of an answer; `on_miss` is told of each miss: cause and tokens.

    `log_share` is the part of the requests of which a line is logged.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        on_miss: Callable[[str, int], None],
        *,
        log_share: float = 0.0,
    ) -> None:
        self._decode = decode
        self._on_miss = on_miss
        self._log_share = log_share
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def find(self, request_id: str | None) -> Record | None:
        """The record of a request; None when there is none any more."""
        return None if request_id is None else self._records.get(request_id)

    def latest(self) -> Iterator[Record]:
        """All records, the latest first."""
        return reversed(self._records.values())

    def add(self, record: Record) -> None:
        """Keep the record of a new request; an older one of the same id goes."""
        if (old := self._records.pop(record.request_id, None)) is not None:
            self._num_bytes -= old.num_bytes
        self._records[record.request_id] = record
        self._num_bytes += record.num_bytes
        self._trim()

    def ended(self, record: Record) -> None:
        """A record has ended, so that its answer counts too."""
        if self._records.get(record.request_id) is record:
            self._num_bytes += record.output_bytes
            self._trim()

    def _trim(self) -> None:
        while len(self._records) > MAX_RECORDS or (self._num_bytes > MAX_KEPT_BYTES and len(self._records) > 1):
            _, oldest = self._records.popitem(last=False)
            self._num_bytes -= oldest.num_bytes

    def scheduled(self, record: Record, reuse: Reuse) -> None:
        """Note what was reused, judge the miss, and tell of it."""
        record.reuse = reuse
        miss = reuse.miss
        if miss is not None:
            if miss.cause == "forked":
                record.verdict = self.judged(record, miss)
            self._on_miss(record.cause or miss.cause, record.missed_tokens)
        if self._log_share and random.random() < self._log_share:
            log.info(
                "cache request_id=%s prompt_tokens=%d cached_tokens=%d cause=%s position=%s part=%s change=%s",
                record.request_id,
                reuse.prompt_tokens,
                reuse.cached_tokens,
                record.cause,
                None if miss is None else miss.position,
                None if record.verdict is None else record.verdict.part,
                None if record.verdict is None else record.verdict.change,
            )

    def is_doubtful(self, record: Record) -> bool:
        """Whether another tokenizer's records could say more of a miss than these did."""
        miss = record.miss
        is_known = miss is None or self.find(miss.relative) is not None
        return record.verdict is not None and not record.is_settled and (record.verdict == NEW or not is_known)

    def settle(self, record: Record, verdict: Verdict | None) -> None:
        """Note what all tokenizers say of a miss; in what was counted and logged nothing changes."""
        record.verdict, record.is_settled = verdict, True

    def judged(self, own: Record, miss: Miss) -> Verdict:
        """Tell a change from what is new, by the request that computed what stands in the cache instead."""
        other = self.find(miss.relative) or self._nearest(own)
        verdict = NEW if other is None else self._compared(own, other, miss)
        if verdict != NEW or own.source is None or not _has_history(own.source):
            return verdict
        # Who computed the shared beginning may know nothing of the later messages.
        for each in self._candidates(own):
            if each.source is not None and each is not other:
                later = compare(own.source, each.source, answer=None)
                if later.cause == "client_changed":
                    return later
        return NEW

    def _compared(self, own: Record, other: Record, miss: Miss) -> Verdict:
        if own.source is None or other.source is None:
            return _compared_ids(own.token_ids, other.token_ids, miss.position)
        is_in_answer = miss.position >= other.num_tokens
        return compare(
            own.source, other.source, answer=(lambda: self._decode([*other.output_ids])) if is_in_answer else None
        )

    def _nearest(self, own: Record) -> Record | None:
        """Of the latest records the one that begins most like `own`."""
        return max(self._candidates(own), key=lambda each: num_shared(each.token_ids, own.token_ids), default=None)

    def _candidates(self, own: Record) -> Iterator[Record]:
        num_left = _CANDIDATES
        for each in self.latest():
            if each is not own and each.salt == own.salt and each.reuse is not None:
                yield each
                num_left -= 1
                if not num_left:
                    return


def _has_history(source: ChatSource) -> bool:
    return any(message.get("role") == "assistant" for message in source.messages)


def _compared_ids(ours: bytes, theirs: bytes, position: int) -> Verdict:
    """Of plain prompts: it's a change where both end alike behind the fork."""
    rest = min(len(ours), len(theirs)) - position * TOKEN_BYTES
    if rest <= 0:
        return NEW
    end = num_shared(ours[: -rest - 1 : -1], theirs[: -rest - 1 : -1])
    return Verdict("client_changed", None, "edited") if end >= max(_ALIKE_TOKENS * TOKEN_BYTES, rest // 2) else NEW
