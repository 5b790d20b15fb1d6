"""Reads the fields that all APIs spell alike: sampling, salt, id. Each route adds those that it spells its own way."""

from __future__ import annotations

from dataclasses import dataclass

from wire.errors import Refused
from wire.sampling import MAX_SAMPLES, Grammar, SamplingParams

from .fields import Fields, shown

MAX_RID_CHARACTERS = 256
MAX_PRIORITY = 1000

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
        Refused: a field has the wrong type or is not supported.
    """
    fields.refuse(UNSUPPORTED)
    default = SamplingParams()
    top_k = fields.integer("top_k")

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
    """How many answers a prompt is to get.

    Raises:
        Refused: `n` is no number of answers.
    """
    n = fields.integer("n")
    if n is None:
        return 1
    if 1 <= n <= MAX_SAMPLES:
        return n
    name = fields.name("n")
    raise Refused(f"{name} must be in [1, {MAX_SAMPLES}], got {n}. Change {name}.", field=name)


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
    """How early the request goes, as against others that wait; the higher, the earlier.

    Raises:
        Refused: it is no integer, or out of range.
    """
    priority = fields.integer("priority") or 0
    if -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        return priority
    name = fields.name("priority")
    raise Refused(f"{name} must be in [{-MAX_PRIORITY}, {MAX_PRIORITY}], got {priority}. Change {name}.", field=name)


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
