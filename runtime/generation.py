"""One request's answer as it grows: token ids become text, stop strings end it, reuse and times are noted.

Knows nothing of HTTP or of any API's shapes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from wire.errors import Broken
from wire.messages.encoding import bytes_to_ids, split_entries, unpack_logprobs
from wire.messages.to_tokenizer import Done, Reuse, Tokens
from wire.sampling import SamplingParams, with_seed_of_sample

from .chat_source import ChatSource
from .client import SchedulerClient
from .metrics import RequestMetrics
from .open_request import OpenRequest
from .records import Record, Records
from .text.detokenizer import detokenizer
from .text.stop import StopStrings
from .text.stop_regex import StopPatterns
from .text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token with its logprob, the most likely ones in its place and the ids that were asked for.

    The first token of a prompt has no logprob. `text` is known in a whole answer of an engine.
    """

    token_id: int
    logprob: float | None
    top: list[tuple[int, float]]
    chosen: list[tuple[int, float]]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class End:
    """Why an answer ended; `matched` is the stop string, the pattern or the token id that stopped it."""

    reason: Literal["stop", "length", "cancelled"]
    matched: int | str | None = None
    message: str | None = None


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What has come since the last one; the last has `end`. Text may lag behind the token ids.

    A msgspec one because each token of each stream makes one: it costs a tenth of a dataclass.

    `prompt_logprobs` of all deltas together are those of the prompt from `prompt_logprobs_from` on.
    """

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    prompt_logprobs: list[TokenLogprob]
    end: End | None


MAX_PRIORITY = 1000
MAX_CACHE_PRIORITY = 10
MAX_CACHE_TTL_S = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What to generate from, ready to be submitted; `sample` counts several answers to the same prompt.

    Of waiting requests those with the higher `priority` go first, for a while. `shown_ids` are special tokens that are
    part of the text even where others are left out. `source` is the chat that it was rendered from, if it was.
    """

    token_ids: Sequence[int]
    sampling: SamplingParams
    request_id: str
    salt: str = ""
    priority: int = 0
    cache_priority: int = 0
    cache_ttl_s: float = 0.0
    sample: int = 0
    shown_ids: frozenset[int] = frozenset()
    source: ChatSource | None = None

    def samples(self, n: int) -> list[Prompt]:
        """This prompt `n` times, for as many answers: each has its own id and, where one was given, its own seed.

        The first keeps the given seed, so that more answers don't change it.
        """
        if n == 1:
            return [self]
        return [
            replace(self, request_id=f"{self.request_id}_{i}", sampling=with_seed_of_sample(self.sampling, i), sample=i)
            for i in range(n)
        ]


class Generation:
    """An answer on its way. Iterating gives `Delta`s, the last one with `end`; leaving the context cancels the rest."""

    def __init__(
        self,
        prompt: Prompt,
        open_request: OpenRequest,
        client: SchedulerClient,
        tokenizer: Tokenizer,
        times: Times,
        record: Record,
        records: Records | None,
    ) -> None:
        """What is found out about this request is noted in `record`, and told to `records` where they are kept."""
        sampling = prompt.sampling
        self.prompt = prompt
        self.times = times
        self.record = record
        self._records = records
        self.output_ids: list[int] = []
        self.record.output_ids = self.output_ids
        self.reuse: Reuse | None = None
        self.num_retractions = 0
        self._client = client
        self._open = open_request
        skipped_ids = tokenizer.special_ids if sampling.skip_special_tokens else frozenset()
        self._detokenizer = detokenizer(
            tokenizer, skipped_ids=skipped_ids - prompt.shown_ids if prompt.shown_ids else skipped_ids
        )
        self._push = self._detokenizer.push
        self._stop = StopStrings(sampling.stop, is_kept=sampling.no_stop_trim) if sampling.stop else None
        self._patterns = StopPatterns(sampling.stop_regex) if sampling.stop_regex else None
        self._hidden_ids = frozenset() if sampling.no_stop_trim else frozenset(sampling.stop_token_ids)
        first = sampling.prompt_logprobs_from
        self._prompt_ids = iter(() if first is None else prompt.token_ids[first:])
        self._is_first_due = first == 0
        self._end: End | None = None
        self._is_plain = self._stop is None and self._patterns is None and not self._is_first_due

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._client.close(self._open, kept_tokens=None)
        self._end_record("broken" if isinstance(error, Broken) else "cancelled")

    def finish(self) -> None:
        """Want no more: what has come is the whole answer, and its end comes next."""
        if self._end is None:
            self._client.close(self._open, kept_tokens=len(self.output_ids))
            self._open.put(Done(request_id=self.prompt.request_id, reason="stop"))
            asyncio.get_running_loop().call_soon(self._open.announce)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were found in the cache; 0 before the request is scheduled."""
        return self.reuse.cached_tokens if self.reuse is not None else 0

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Delta:
        """Raises AxilError when the request is refused or broken, or a process died."""
        if self._end is not None:
            raise StopAsyncIteration
        return self._taken(await self._open.take())

    def listen(self, on_news: Callable[[], None]) -> None:
        """Have `on_news`, which must not raise, called whenever `poll` may give something; instead of iterating."""
        self._open.listener = on_news

    def poll(self) -> Delta | None:
        """What has come since the last one; None when there is nothing new.

        Raises:
            AxilError: as when iterating.
        """
        messages = self._open.take_now()
        return self._taken(messages) if messages else None

    def _taken(self, messages: list[int | Tokens | Done]) -> Delta:
        if self._is_plain and len(messages) == 1 and isinstance(token_id := messages[0], int):
            # Nearly every token of nearly every stream: nothing to look for, nothing else to tell.
            self.output_ids.append(token_id)
            self.times.note_tokens(1, self.reuse)
            text = "" if token_id in self._hidden_ids else self._push(token_id)
            return Delta(text, [token_id], [], [], None)
        pieces: list[str] = []
        logprobs: list[TokenLogprob] = []
        prompt_logprobs = self._first_prompt_logprob()
        num_before = len(self.output_ids)
        for message in messages:
            match message:
                case int():
                    self._take_token(message, pieces)
                case Tokens():
                    self._take_reuse(message.reuse)
                    prompt_logprobs += [
                        self._logprob(next(self._prompt_ids), entry)
                        for entry in split_entries(message.prompt_logprobs, message.num_prompt_logprobs)
                    ]
                    self._take_tokens(message, pieces, logprobs)
                case Done():
                    self._take_reuse(message.reuse)
                    self._take_done(message, pieces)
            if self._end is not None:
                break
        token_ids = self.output_ids[num_before:]
        if token_ids:
            self.times.note_tokens(len(token_ids), self.reuse)
        if self._end is not None:
            self.times.note_end(len(self.output_ids))
            self._end_record(self._end.reason)
        return Delta(
            text="".join(pieces),
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            end=self._end,
        )

    def _end_record(self, reason: str) -> None:
        """Note how the answer ended; only the first time counts."""
        if self.record.ended is None:
            self.record.end(reason, self.times.elapsed_s, self.times.first_s)
            if self._records is not None:
                self._records.ended(self.record)

    def _take_reuse(self, reuse: Reuse | None) -> None:
        if reuse is not None and self.reuse is None:
            self.reuse = reuse
            self.times.note_scheduled(reuse)
            if self._records is not None:
                self._records.scheduled(self.record, reuse)

    def _first_prompt_logprob(self) -> list[TokenLogprob]:
        """The entry of the prompt's first token, once: nothing predicts it, so nobody sends it."""
        if not self._is_first_due:
            return []
        self._is_first_due = False
        return [TokenLogprob(next(self._prompt_ids), None, [], [])]

    def _logprob(self, token_id: int, entry: bytes) -> TokenLogprob:
        logprob, pairs = unpack_logprobs(entry)
        num_top = len(pairs) - len(self.prompt.sampling.logprob_ids)
        return TokenLogprob(token_id, logprob, pairs[:num_top], pairs[num_top:])

    def _take_tokens(self, message: Tokens, pieces: list[str], logprobs: list[TokenLogprob]) -> None:
        for i, token_id in enumerate(bytes_to_ids(message.token_ids)):
            if message.logprobs:
                logprobs.append(self._logprob(token_id, message.logprobs[i]))
            self._take_token(token_id, pieces)
            if self._end is not None:
                return

    def _take_token(self, token_id: int, pieces: list[str]) -> None:
        self.output_ids.append(token_id)
        if token_id in self._hidden_ids:
            return
        self._show(self._push(token_id), pieces)
        if self._end is not None:
            self._client.close(self._open, kept_tokens=len(self.output_ids))

    def _take_done(self, message: Done, pieces: list[str]) -> None:
        self.num_retractions = message.num_retractions
        if message.reason == "broken":
            raise Broken(message.message or "the model gave no usable result for this request.")
        self._show(self._detokenizer.flush(), pieces)
        if self._end is not None:
            return
        if self._stop is not None:
            pieces.append(self._stop.flush())
        self._end = End(message.reason, message.matched_token_id, message.message)

    def _show(self, text: str, pieces: list[str]) -> None:
        if text and self._patterns is not None:
            text = self._patterns.push(text)
        if not text or self._stop is None:
            pieces.append(text)
        else:
            pieces.append(self._stop.push(text))
            if self._stop.matched is not None:
                self._end = End("stop", self._stop.matched)
                return
        if self._patterns is not None and self._patterns.matched is not None:
            if self._stop is not None:
                pieces.append(self._stop.flush())
            self._end = End("stop", self._patterns.matched)


class Times:
    """When a request arrived, gave its first token and ended, on the monotonic clock."""

    __slots__ = ("_last_at", "_metrics", "arrived_at", "ended_at", "first_at")

    def __init__(self, metrics: RequestMetrics) -> None:
        self._metrics = metrics
        self.arrived_at = time.monotonic()
        self.first_at: float | None = None
        self.ended_at: float | None = None
        self._last_at = self.arrived_at

    def note_scheduled(self, reuse: Reuse) -> None:
        """It is known what was cached of the prompt."""
        self._metrics.scheduled(reuse)

    def note_tokens(self, num_tokens: int, reuse: Reuse | None) -> None:
        """Tokens have come."""
        now = time.monotonic()
        if self.first_at is None:
            self.first_at = now
            self._metrics.time_to_first_token_s(now - self.arrived_at, reuse)
        else:
            self._metrics.inter_token_latency_s(now - self._last_at, num_tokens)
        self._last_at = now

    def note_end(self, output_tokens: int) -> None:
        """The answer is complete."""
        self.ended_at = time.monotonic()
        self._metrics.ended(self.ended_at - self.arrived_at, output_tokens)

    @property
    def first_s(self) -> float | None:
        """From arrival to the first token; None before it."""
        return None if self.first_at is None else self.first_at - self.arrived_at

    @property
    def elapsed_s(self) -> float:
        """From arrival to the end, or to now."""
        return (self.ended_at or time.monotonic()) - self.arrived_at
