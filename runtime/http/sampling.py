"""Reads the fields that all APIs spell alike: sampling, salt, id. Each route adds those that it spells its own way."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.generation import MAX_PRIORITY
from wire.errors import Refused
from wire.sampling import (
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIAS_IDS,
    MAX_SAMPLES,
    MAX_STOP_PATTERNS,
    MAX_STOP_REGEX_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    RANGES,
    Grammar,
    SamplingParams,
)

from .fields import Fields
from .schema import Schema, boolean, integer, list_of, mapping, number, one_or_list, ranged, shown, string, unsupported

MAX_RID_CHARACTERS = 256
MAX_SALT_CHARACTERS = 1024
"""The scheduler remembers salts of requests that have ended."""

_LARGEST_TOP_K = 2**31 - 1
_MOST_ID_DIGITS = 10

UNSUPPORTED: dict[str, object] = {
    "beam_width": 1,
    "custom_params": None,
    "watermark": None,
    "lora_path": None,
    "custom_logit_processor": None,
    "return_hidden_states": None,
}
"""Fields that clients know and this server does not, with the value that asks for nothing (beside null and empty)."""


SAMPLING_FIELDS: dict[str, Schema] = {
    "temperature": ranged(RANGES["temperature"], "number", text="0 takes the most likely token always. Default 1."),
    "top_k": integer(-1, text="Only the k most likely tokens; -1 and 0: all."),
    "top_p": ranged(RANGES["top_p"], "number", text="Only the most likely tokens that have this probability together."),
    "min_p": ranged(RANGES["min_p"], "number", text="Only tokens at least this likely, the most likely being 1."),
    "repetition_penalty": ranged(RANGES["repetition_penalty"], "number", text="Of tokens in prompt and answer."),
    "frequency_penalty": ranged(RANGES["frequency_penalty"], "number", text="Times a token's count in the answer."),
    "presence_penalty": ranged(RANGES["presence_penalty"], "number", text="Of tokens in the answer."),
    "logit_bias": mapping(
        number(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS), most=MAX_LOGIT_BIAS_IDS, text="Token ids, as strings, to numbers."
    ),
    "stop": one_or_list(string(), most=MAX_STOP_STRINGS, text="Texts that end the answer, and are cut off."),
    "stop_token_ids": list_of(integer(), most=MAX_STOP_TOKEN_IDS, text="Tokens that end the answer."),
    "stop_regex": one_or_list(
        string(longest=MAX_STOP_REGEX_CHARACTERS), most=MAX_STOP_PATTERNS, text="Patterns (RE2) that end the answer."
    ),
    "ignore_eos": boolean(text="Go on behind an end of sequence."),
    "skip_special_tokens": boolean(text="Leave special tokens out of the text. Default true."),
    "spaces_between_special_tokens": boolean(text="Taken and not needed: no tokenizer here puts spaces there."),
    "no_stop_trim": boolean(text="Keep what stopped the answer in its text."),
    "n": integer(1, MAX_SAMPLES, text="Answers to each prompt. Default 1."),
    **unsupported(UNSUPPORTED),
}
"""The sampling parameters that all APIs spell alike."""

CACHE_FIELDS: dict[str, Schema] = {
    "cache_salt": string(longest=MAX_SALT_CHARACTERS, text="Requests of different salts share no cache."),
    "extra_key": string(longest=MAX_SALT_CHARACTERS, text="Another name of cache_salt."),
    "priority": integer(-MAX_PRIORITY, MAX_PRIORITY, text="Of waiting requests the higher goes first."),
}
"""What a request says of the cache and the queue, in all APIs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNames:
    """The sampling parameters that each API names in its own way."""

    max_new_tokens: int | None
    min_new_tokens: int | None
    seed: int | None
    num_top_logprobs: int | None
    grammar: Grammar | None


def read_sampling(fields: Fields, own: OwnNames) -> SamplingParams:
    """The sampling parameters in `fields` and `own`, unchecked as to range.

    Raises:
        Refused: a field has the wrong type.
    """
    default = SamplingParams()
    top_k = fields.integer("top_k")

    fields.boolean("spaces_between_special_tokens", True)

    def number(name: str, otherwise: float) -> float:
        value = fields.number(name)
        return otherwise if value is None else value

    return SamplingParams(
        max_new_tokens=own.max_new_tokens,
        temperature=number("temperature", default.temperature),
        top_k=None if top_k in (None, -1, 0) else min(top_k, _LARGEST_TOP_K),
        top_p=number("top_p", default.top_p),
        min_p=number("min_p", default.min_p),
        repetition_penalty=number("repetition_penalty", default.repetition_penalty),
        frequency_penalty=number("frequency_penalty", default.frequency_penalty),
        presence_penalty=number("presence_penalty", default.presence_penalty),
        logit_bias=_read_logit_bias(fields),
        min_new_tokens=own.min_new_tokens or 0,
        seed=own.seed,
        stop=fields.strings("stop"),
        stop_token_ids=fields.integers("stop_token_ids"),
        stop_regex=tuple(pattern for pattern in fields.strings("stop_regex") if pattern),
        ignore_eos=fields.boolean("ignore_eos", False),
        skip_special_tokens=fields.boolean("skip_special_tokens", True),
        no_stop_trim=fields.boolean("no_stop_trim", False),
        num_top_logprobs=own.num_top_logprobs,
        grammar=own.grammar,
    )


def _read_logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    biases: dict[int, float] = {}
    for key, value in fields.mapping("logit_bias").items():
        if not (key.isascii() and key.isdigit() and len(key) <= _MOST_ID_DIGITS):
            raise fields.wrong_type("logit_bias", "an object of token ids (as strings) to numbers", {key: value})
        if type(value) is not int and type(value) is not float:
            raise fields.wrong_type("logit_bias", "an object of token ids to numbers", {key: value})
        biases[int(key)] = float(value)
    return tuple(biases.items())


def read_num_samples(fields: Fields) -> int:
    """How many answers a prompt is to get."""
    return fields.integer("n") or 1


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


def read_priority(fields: Fields) -> int:
    """How early the request goes, as against others that wait; the higher, the earlier."""
    return fields.integer("priority") or 0


def checked_rid(rid: str) -> str:
    """Return `rid` when it can be a request's id, also in a header.

    Raises:
        Refused: it is empty, too long or holds control characters.
    """
    if 0 < len(rid) <= MAX_RID_CHARACTERS and rid.isprintable():
        return rid
    raise Refused(
        f"rid must have 1 to {MAX_RID_CHARACTERS} printable characters, got {len(rid)} ({shown(rid)}). Change rid.",
        field="rid",
    )
