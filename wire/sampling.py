"""How a request wants its tokens chosen. Knows no JSON dialect: each route translates into this."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, StructMeta
from msgspec.structs import replace

from wire.errors import Refused
from wire.names import near

GREEDY_BELOW = 1e-6
MAX_TOP_LOGPROBS = 20
MAX_LOGPROB_IDS = 1024
MAX_STOP_STRINGS = 32
MAX_STOP_TOKEN_IDS = 1024
MAX_STOP_PATTERNS = 8
MAX_STOP_REGEX_CHARACTERS = 256
MAX_SAMPLES = 128
MAX_LOGIT_BIAS = 100.0
MAX_LOGIT_BIAS_IDS = 65_536
LARGEST_TOKEN_ID = 2**31 - 1
MAX_TEMPERATURE = 1e6
LEAST_REPETITION_PENALTY = 1e-9

_SEED_STEP = 0x9E3779B97F4A7C15


class Range(Struct, frozen=True):
    """The numbers from `low` (with `is_low_open`: above it) to `high`."""

    low: float
    high: float = math.inf
    is_low_open: bool = False


RANGES = {
    "max_new_tokens": Range(0),
    "temperature": Range(0, MAX_TEMPERATURE),
    "top_k": Range(1),
    "top_p": Range(0, 1, is_low_open=True),
    "min_p": Range(0, 1),
    "repetition_penalty": Range(LEAST_REPETITION_PENALTY, 2),
    "frequency_penalty": Range(-2, 2),
    "presence_penalty": Range(-2, 2),
    "min_new_tokens": Range(0),
    "seed": Range(-(2**63), 2**63 - 1),
    "num_top_logprobs": Range(0, MAX_TOP_LOGPROBS),
    "prompt_logprobs_from": Range(0),
}
"""The numbers among the sampling parameters, and where each must lie; infinity and NaN lie nowhere.

Logits are float32: what is divided by a penalty and a temperature within these ranges stays a finite number.
"""

_TOKEN_IDS = Range(0, LARGEST_TOKEN_ID)
_SPELLED = {"num_top_logprobs": "logprobs", "prompt_logprobs_from": "logprob_start_len"}
"""What a message calls a parameter, where clients know it by another name."""

_ELSEWHERE = {
    "n": "n belongs to engine.generate(…, n=4)",
    **{form: f"write grammar=axil.{form}(…)" for form in ("json_schema", "regex", "choice", "ebnf")},
}
"""What isn't among the sampling parameters, and where it is given instead."""


class Grammar(Struct, frozen=True, kw_only=True):
    """What an answer's text must be: `source` in llguidance's own form (its JSON or its Lark).

    `field` is the request's field that it came from. `eos_token_ids` may follow once the text is whole; they are set
    before a request leaves the tokenizer process.
    """

    source: str
    field: str
    eos_token_ids: tuple[int, ...] = ()


class _Named(StructMeta):
    """Says, of a parameter that there isn't, which may have been meant."""

    def __call__(cls, *args: Any, **params: Any) -> Any:  # noqa: ANN401 - the class's own parameters and instance
        try:
            return super().__call__(*args, **params)
        except TypeError:
            known = cls.__struct_fields__
            unknown = next((name for name in params if name not in known), None)
            if unknown is None:
                raise
            where = _ELSEWHERE.get(unknown)
            meant = near(unknown, known) if where is None else f": {where}"
        raise TypeError(f"{cls.__name__} has no parameter {unknown!r}{meant}")


class SamplingParams(Struct, frozen=True, kw_only=True, metaclass=_Named):
    """Sampling parameters of one request; `checked` says whether they make sense.

    `top_k` None means all tokens. `seed` None means a random one, resolved before a request leaves the tokenizer
    process. `max_new_tokens` None means as many as fit, resolved by the scheduler. `num_top_logprobs` None means no
    logprobs, 0 the sampled token's only; with logprobs, those of `logprob_ids` are told as well, and those of the
    prompt's tokens from `prompt_logprobs_from` on (None: of none).

    The raw logits are changed in this order: `repetition_penalty` divides positive and multiplies negative logits of
    ids in prompt or output; `frequency_penalty` times its count in the output and `presence_penalty` are subtracted
    from each id of the output; `logit_bias` is added; ids of `stop_token_ids` are impossible before `min_new_tokens`;
    so is, with a `grammar`, every token by which the text could no longer become one of its texts.
    Then temperature, then top_k, top_p and min_p, all three on the same softmax ("joint"). Logprobs are of the raw
    logits.
    """

    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_new_tokens: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    num_top_logprobs: int | None = None
    logprob_ids: tuple[int, ...] = ()
    prompt_logprobs_from: int | None = None
    grammar: Grammar | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def needs_prompt_ids(self) -> bool:
        """Whether a token's choice or logprobs need to know the prompt's."""
        return self.repetition_penalty != 1 or self.prompt_logprobs_from is not None

    @property
    def has_penalties(self) -> bool:
        """Whether tokens become less likely by having been chosen before."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def needs_output_ids(self) -> bool:
        """Whether choosing a token needs to know those chosen before it."""
        return self.has_penalties or self.grammar is not None


def with_seed_of_sample(params: SamplingParams, sample: int) -> SamplingParams:
    """The parameters of one of several answers to a prompt: seeds are distinct, and the first one's is the given."""
    if params.seed is None or sample == 0:
        return params
    # A bijection of 64 bits (an odd step) keeps them apart, far from the seeds that people count up by one.
    seed = (params.seed + sample * _SEED_STEP) % 2**64
    return replace(params, seed=seed - 2**64 if seed >= 2**63 else seed)


def checked(params: SamplingParams) -> SamplingParams:
    """Return `params` unchanged.

    Raises:
        Refused: a value lies outside its range; the error names field, limit and value.
    """
    for name, range_ in RANGES.items():
        _within(_SPELLED.get(name, name), getattr(params, name), range_)
    if len(params.logit_bias) > MAX_LOGIT_BIAS_IDS:
        raise Refused(
            f"logit_bias has {len(params.logit_bias):,} ids; at most {MAX_LOGIT_BIAS_IDS:,} are allowed. Send fewer.",
            field="logit_bias",
        )
    _all_within("logit_bias", [token_id for token_id, _ in params.logit_bias], _TOKEN_IDS)
    _all_within("logit_bias", [bias for _, bias in params.logit_bias], Range(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS))
    if params.max_new_tokens is not None:
        _within("min_new_tokens", params.min_new_tokens, Range(0, params.max_new_tokens))
    _all_within("token_ids_logprob", params.logprob_ids, _TOKEN_IDS)
    if len(params.logprob_ids) > MAX_LOGPROB_IDS:
        raise Refused(
            f"token_ids_logprob has {len(params.logprob_ids):,} ids; at most {MAX_LOGPROB_IDS:,} are allowed."
            " Send fewer.",
            field="token_ids_logprob",
        )
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
    if len(params.stop_regex) > MAX_STOP_PATTERNS:
        raise Refused(
            f"stop_regex has {len(params.stop_regex)} patterns; at most {MAX_STOP_PATTERNS} are allowed. Send fewer.",
            field="stop_regex",
        )
    for pattern in params.stop_regex:
        if len(pattern) > MAX_STOP_REGEX_CHARACTERS:
            raise Refused(
                f"a pattern of stop_regex has {len(pattern):,} characters; at most {MAX_STOP_REGEX_CHARACTERS} are"
                " allowed. Shorten it.",
                field="stop_regex",
            )
    if params.grammar is not None and params.min_new_tokens:
        raise Refused(
            f"{params.grammar.field} says where the answer ends, so min_new_tokens must be 0, got"
            f" {params.min_new_tokens}. Leave it out.",
            field="min_new_tokens",
        )
    _all_within("stop_token_ids", params.stop_token_ids, _TOKEN_IDS)
    return params


def _all_within(field: str, values: Sequence[float], range_: Range) -> None:
    """Look at the extremes first: there may be many values, and one body may hold them for many prompts."""
    is_within = not values or (min(values) >= range_.low and max(values) <= range_.high)
    if not (is_within and all(map(math.isfinite, values))):
        for value in values:
            _within(field, value, range_)


def _within(field: str, value: float | None, range_: Range) -> None:
    if value is None:
        return
    low, high = range_.low, range_.high
    is_low_ok = value > low if range_.is_low_open else value >= low
    if -math.inf < value < math.inf and is_low_ok and value <= high:  # isfinite takes no large integers
        return
    bracket = "(" if range_.is_low_open else "["
    limit = f"at least {low:g}" if high == math.inf else f"in {bracket}{low:g}, {high:g}]"
    raise Refused(f"{field} must be a finite number {limit}, got {value}. Change {field}.", field=field)
