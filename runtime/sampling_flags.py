"""Sampling parameters as flags of `axil generate` and `axil chat`."""

from __future__ import annotations

from dataclasses import dataclass

from wire.flags import flag
from wire.sampling import SamplingParams, checked


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """How an answer's tokens are chosen."""

    max_tokens: int | None = flag(None, "Output tokens, at most; auto is as many as fit.")
    temperature: float = flag(1.0, "How much chance there is; 0 always takes the most likely token.")
    top_k: int | None = flag(None, "Only the K most likely tokens; auto is all.")
    top_p: float = flag(1.0, "Only the most likely tokens that together have this probability.")
    min_p: float = flag(0.0, "Only tokens with at least this share of the most likely one's probability.")
    seed: int | None = flag(None, "Number that makes an answer repeatable; auto takes a random one.")
    stop: str | None = flag(None, "Text before which an answer ends.", metavar="TEXT")
    ignore_eos: bool = flag(False, "Go on after the end-of-sequence token.")

    def sampling(self) -> SamplingParams:
        """The parameters as the processes know them.

        Raises:
            Refused: a value lies outside its range; the message names it.
        """
        return checked(
            SamplingParams(
                max_new_tokens=self.max_tokens,
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                seed=self.seed,
                stop=() if self.stop is None else (self.stop,),
                ignore_eos=self.ignore_eos,
            )
        )
