"""A request as the scheduler sees it: integers only. Knows no text, no sockets and no pages but its lease's."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NewType

import numpy as np
import numpy.typing as npt

from radix.cache import NO_HINTS, Hints, Lease, Namespace
from wire.messages.from_runner import PromptLogprobs
from wire.messages.to_tokenizer import Reuse
from wire.sampling import SamplingParams

from .output_length import Estimate

ClientId = NewType("ClientId", bytes)
TokenIds = npt.NDArray[np.int32]

_SPARE_TOKENS = 64
"""Room for output kept at least, when prompt and output are written down together."""


@dataclass(slots=True, eq=False)
class Request:
    """An accepted request, waiting or running, with the output that has arrived so far.

    `arrival` counts accepted requests. The higher `priority` goes first. `next_logprob` is the first prompt token whose
    logprob is wanted and not told yet; so many from it on were known of cached tokens when last looked up. `put_off` is
    behind how many cached tokens, and from which step on, it has waited for a part of a page.
    """

    request_id: str
    client: ClientId
    namespace: Namespace
    sampling: SamplingParams
    prompt_ids: TokenIds
    prompt_tokens: int
    max_new_tokens: int
    stop_token_ids: frozenset[int]
    arrival: int
    arrived_s: float
    priority: int = 0
    hints: Hints = NO_HINTS
    output: array[int] = field(default_factory=lambda: array("i"))
    num_retractions: int = 0
    reuse: Reuse | None = None
    num_skips: int = 0
    put_off: tuple[int, int] | None = None
    prompt_bytes: bytes = field(default=b"", repr=False)
    next_logprob: int | None = None
    num_known_logprobs: int = 0
    _written: TokenIds = field(default_factory=lambda: np.empty(0, np.int32), repr=False)
    _num_written: int = 0

    @property
    def token_ids(self) -> TokenIds:
        """Prompt and output known so far; not to be written to. O(output since it was last asked for), amortised."""
        if not self.output:
            return self.prompt_ids
        num_tokens = self.num_tokens
        if num_tokens > self._num_written:
            if num_tokens > len(self._written):
                known = self._written[: self._num_written] if self._num_written else self.prompt_ids
                self._written = np.empty(num_tokens + len(self.output) + _SPARE_TOKENS, np.int32)
                self._written[: len(known)] = known
                self._num_written = len(known)
            self._written[self._num_written : num_tokens] = self.output[self._num_written - self.prompt_tokens :]
            self._num_written = num_tokens
        return self._written[:num_tokens]

    @property
    def output_ids(self) -> TokenIds:
        """Output known so far."""
        return np.array(self.output, np.int32)

    @property
    def output_tokens(self) -> int:
        """Output tokens that have arrived."""
        return len(self.output)

    @property
    def num_tokens(self) -> int:
        """Count prompt and output known so far."""
        return self.prompt_tokens + len(self.output)

    @property
    def reusable_tokens(self) -> int:
        """Most tokens that may come from the cache: at least one is computed, and those that logprobs come from."""
        reusable = self.num_tokens - 1
        if self.next_logprob is None:
            return reusable
        return min(reusable, self.next_logprob - 1 + self.num_known_logprobs)


@dataclass(slots=True, eq=False)
class Running:
    """A request's stay in a row of the runner, from admission to its end or retraction.

    # token ids:  [ computed: its step has retired | planned, in flight | to prefill, or unknown yet )
    #             0                        computed_tokens      planned_tokens        target_tokens

    `target_tokens` is what was known at admission: prefill up to there, decode beyond, up to `last_tokens`: the last
    token of an output is never computed. Once `is_forced`, a grammar has left no choice about some tokens: they are
    known before they are computed, and the target lies behind them. `page_end_tokens` is where the page ends that holds
    the last of the first target. `promised_pages` are those that it's expected to need beyond what it has, by the
    estimate `lengths`. Once `is_live` is false its results are dropped. `found_logprobs` of cached tokens are told with
    the first step; `homeless_logprob` is that of a token which has no page yet.
    """

    request: Request
    row: int
    lease: Lease
    target_tokens: int
    computed_tokens: int
    planned_tokens: int
    last_tokens: int
    page_end_tokens: int
    lengths: Estimate
    promised_pages: int
    is_live: bool = True
    is_forced: bool = False
    found_logprobs: PromptLogprobs | None = None
    homeless_logprob: float | None = None

    @property
    def prefill_left_tokens(self) -> int:
        """Tokens to prefill that are not planned yet."""
        return max(0, self.target_tokens - self.planned_tokens)
