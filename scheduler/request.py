"""A request as the scheduler sees it: integers only. Knows no text, no sockets and no pages but its lease's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType

import numpy as np
import numpy.typing as npt

from radix.cache import NO_HINTS, Hints, Lease, Namespace
from wire.messages import Reuse
from wire.sampling import SamplingParams

ClientId = NewType("ClientId", bytes)
TokenIds = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Request:
    """An accepted request, waiting or running, with the output that has arrived so far.

    `buffer` has room for the prompt and `max_new_tokens` more; the first `num_tokens` are known. `arrival` counts
    accepted requests. `overtaken_tokens` is what later requests have computed since this one came. `next_logprob` is
    the first prompt token whose logprob is wanted and not told yet.
    """

    request_id: str
    client: ClientId
    namespace: Namespace
    sampling: SamplingParams
    buffer: TokenIds
    prompt_tokens: int
    max_new_tokens: int
    stop_token_ids: frozenset[int]
    arrival: int
    arrived_s: float
    num_tokens: int
    hints: Hints = NO_HINTS
    num_retractions: int = 0
    reuse: Reuse | None = None
    overtaken_tokens: int = 0
    num_skips: int = 0
    follows_until_s: float | None = None
    matched_tokens: int = 0
    matched_version: int | None = None
    prompt_bytes: bytes = field(default=b"", repr=False)
    next_logprob: int | None = None

    @property
    def token_ids(self) -> TokenIds:
        """Prompt and output known so far."""
        return self.buffer[: self.num_tokens]

    @property
    def output_ids(self) -> TokenIds:
        """Output known so far."""
        return self.buffer[self.prompt_tokens : self.num_tokens]

    @property
    def output_tokens(self) -> int:
        """Output tokens that have arrived."""
        return self.num_tokens - self.prompt_tokens

    @property
    def reusable_tokens(self) -> int:
        """Most tokens that may come from the cache: at least one is computed, and those that logprobs come from."""
        reusable = self.num_tokens - 1
        return reusable if self.next_logprob is None else min(reusable, self.next_logprob - 1)

    def append(self, token_id: int) -> None:
        """Take one output token."""
        self.buffer[self.num_tokens] = token_id
        self.num_tokens += 1


@dataclass(slots=True, eq=False)
class Running:
    """A request's stay in a row of the runner, from admission to its end or retraction.

    # token ids:  [ computed: its step has retired | planned, in flight | to prefill, or unknown yet )
    #             0                        computed_tokens      planned_tokens        target_tokens

    `target_tokens` is what was known at admission: prefill up to there, decode beyond. `planned_samples` counts output
    tokens of the whole request, those in flight included. Once `is_live` is false its results are dropped.
    """

    request: Request
    row: int
    lease: Lease
    target_tokens: int
    computed_tokens: int
    planned_tokens: int
    planned_samples: int
    is_live: bool = True

    @property
    def prefill_left_tokens(self) -> int:
        """Tokens to prefill that are not planned yet."""
        return max(0, self.target_tokens - self.planned_tokens)

    @property
    def wants_decode(self) -> bool:
        """Whether the next step may compute one token for it."""
        return self.planned_tokens >= self.target_tokens and self.planned_samples < self.request.max_new_tokens
