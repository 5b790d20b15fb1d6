"""How a request wants its tokens chosen. Knows no JSON dialect: each route translates into this."""

from __future__ import annotations

import math

from msgspec import Struct

from wire.errors import Refused

GREEDY_BELOW = 1e-6
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 32
MAX_STOP_TOKEN_IDS = 1024


class SamplingParams(Struct, frozen=True, kw_only=True):
    """Sampling parameters of one request; `checked` says whether they make sense.

    `top_k` None means all tokens. `seed` None means a random one, resolved before a request leaves the tokenizer
    process. `max_new_tokens` None means as many as fit, resolved by the scheduler. `num_top_logprobs` None means no
    logprobs, 0 the sampled token's only. Order of filters: temperature, then top_k, top_p and min_p, all three on the
    same softmax ("joint").
    """

    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    num_top_logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


def checked(params: SamplingParams) -> SamplingParams:
    """Return `params` unchanged.

    Raises:
        Refused: a value lies outside its range; the error names field, limit and value.
    """
    _within("max_new_tokens", params.max_new_tokens, low=0)
    _within("temperature", params.temperature, low=0.0)
    _within("top_k", params.top_k, low=1)
    _within("top_p", params.top_p, low=0.0, high=1.0, is_low_open=True)
    _within("min_p", params.min_p, low=0.0, high=1.0)
    _within("seed", params.seed, low=-(2**63), high=2**63 - 1)
    _within("logprobs", params.num_top_logprobs, low=0, high=MAX_TOP_LOGPROBS)
    if len(params.stop) > MAX_STOP_STRINGS:
        raise Refused(
            f"stop has {len(params.stop)} strings; at most {MAX_STOP_STRINGS} are allowed. Send fewer.",
            field="stop",
        )
    if "" in params.stop:
        raise Refused("stop contains an empty string, which would stop at once. Remove it.", field="stop")
    if len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise Refused(
            f"stop_token_ids has {len(params.stop_token_ids)} ids; at most {MAX_STOP_TOKEN_IDS} may be sent.",
            field="stop_token_ids",
        )
    for token_id in params.stop_token_ids:
        _within("stop_token_ids", token_id, low=0, high=2**31 - 1)
    return params


def _within(field: str, value: float | None, *, low: float, high: float = math.inf, is_low_open: bool = False) -> None:
    if value is None:
        return
    is_low_ok = value > low if is_low_open else value >= low
    if math.isfinite(value) and is_low_ok and value <= high:
        return
    bracket = "(" if is_low_open else "["
    limit = f"at least {low:g}" if high == math.inf else f"in {bracket}{low:g}, {high:g}]"
    raise Refused(f"{field} must be a finite number {limit}, got {value}. Change {field}.", field=field)
