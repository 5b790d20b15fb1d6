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
    repetition_penalty: float = flag(1.0, "Above 1: tokens of prompt and answer become less likely to come again.")
    frequency_penalty: float = flag(0.0, "Above 0: a token becomes less likely each time that it comes in the answer.")
    presence_penalty: float = flag(0.0, "Above 0: a token that has come in the answer becomes less likely.")
    logit_bias: str | None = flag(None, "Token ids made more or less likely, in [-100, 100].", metavar="ID:BIAS,…")
    seed: int | None = flag(None, "Number that makes an answer repeatable; auto takes a random one.")
    stop: str | None = flag(None, "Text before which an answer ends.", metavar="TEXT")
    stop_regex: str | None = flag(None, "RE2 pattern with whose first match an answer ends.", metavar="PATTERN")
    min_tokens: int = flag(0, "Output tokens before the end-of-sequence token may come.")
    ignore_eos: bool = flag(False, "Go on after the end-of-sequence token.")

    def sampling(self) -> SamplingParams:
        """The parameters as the processes know them.

        Raises:
            Refused: a value lies outside its range; the message names it.
            ValueError: --logit-bias is no list of ids and numbers.
        """
        return checked(
            SamplingParams(
                max_new_tokens=self.max_tokens,
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                repetition_penalty=self.repetition_penalty,
                frequency_penalty=self.frequency_penalty,
                presence_penalty=self.presence_penalty,
                logit_bias=_biases(self.logit_bias or ""),
                min_new_tokens=self.min_tokens,
                seed=self.seed,
                stop=() if self.stop is None else (self.stop,),
                stop_regex=() if self.stop_regex is None else (self.stop_regex,),
                ignore_eos=self.ignore_eos,
            )
        )


def _biases(text: str) -> tuple[tuple[int, float], ...]:
    try:
        pairs = [pair.split(":") for pair in text.split(",") if pair]
        return tuple((int(token_id), float(bias)) for token_id, bias in pairs)
    except ValueError as error:
        raise ValueError(f"--logit-bias must be token ids with numbers, as in 17:-100,42:5.5, got {text!r}") from error
