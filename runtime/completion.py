"""What an engine gives back: a whole answer, or a piece of one that is being streamed. Only values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .generation import TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole answer.

    `matched` is the stop string, pattern or token id that ended it, if one did. `cached_tokens` are those of the prompt
    that were not computed again. `logprobs` has one entry for each of `token_ids` when the sampling parameters ask for
    them (`num_top_logprobs`), and is None otherwise; `prompt_logprobs` has those of the prompt's tokens from
    `prompt_logprobs_from` on.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    matched: int | str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What has come since the last chunk; text may lag behind the token ids. The last one has the whole answer.

    Of several answers to one prompt it belongs to the one at `index`.
    """

    text: str
    token_ids: tuple[int, ...]
    completion: Completion | None = None
    index: int = 0
