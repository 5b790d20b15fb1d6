"""Reads the sampling fields that all APIs spell alike. Each route adds the ones that it spells in its own way."""

from __future__ import annotations

from wire.sampling import SamplingParams

from .fields import Fields

_LARGEST_TOP_K = 2**31 - 1

UNSUPPORTED: dict[str, object] = {
    "n": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_new_tokens": 0,
    "min_tokens": 0,
    "beam_width": 1,
    "logit_bias": None,
    "regex": None,
    "json_schema": None,
    "ebnf": None,
    "structural_tag": None,
    "stop_regex": None,
    "custom_params": None,
    "watermark": None,
    "lora_path": None,
    "custom_logit_processor": None,
    "return_hidden_states": None,
}
"""Fields that clients know and this server does not, with the value that asks for nothing (beside null and empty)."""


def read_sampling(
    fields: Fields, *, max_new_tokens: int | None, seed: int | None, num_top_logprobs: int | None
) -> SamplingParams:
    """The sampling parameters in `fields`, unchecked as to range.

    Raises:
        Refused: a field has the wrong type or is not supported.
    """
    fields.refuse(UNSUPPORTED)
    default = SamplingParams()
    temperature = fields.number("temperature")
    top_p = fields.number("top_p")
    top_k = fields.integer("top_k")
    min_p = fields.number("min_p")
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=default.temperature if temperature is None else temperature,
        top_k=None if top_k in (None, -1, 0) else min(top_k, _LARGEST_TOP_K),
        top_p=default.top_p if top_p is None else top_p,
        min_p=default.min_p if min_p is None else min_p,
        seed=seed,
        stop=fields.strings("stop"),
        stop_token_ids=fields.integers("stop_token_ids"),
        ignore_eos=fields.boolean("ignore_eos", False),
        skip_special_tokens=fields.boolean("skip_special_tokens", True),
        no_stop_trim=fields.boolean("no_stop_trim", False),
        num_top_logprobs=num_top_logprobs,
    )


def read_salt(fields: Fields) -> str:
    """The cache's salt, under either of its names; empty means none.

    Raises:
        Refused: it is no string, or both names are used.
    """
    salt = fields.string("cache_salt") or ""
    extra = fields.string("extra_key") or ""
    if salt and extra:
        raise fields.wrong_type("extra_key", "absent when cache_salt is given", extra)
    return salt or extra
