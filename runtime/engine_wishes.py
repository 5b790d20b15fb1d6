"""What a program asks an engine for: prompts in their several forms, and sampling parameters with checked types.

Knows no processes and no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from wire.errors import AxilError, Refused
from wire.sampling import MAX_SAMPLES, SamplingParams

DEFAULT_NEW_TOKENS = 128
"""Output tokens of a prompt that comes without sampling parameters; a chat's answer may fill the context."""

Message = Mapping[str, object]
TextOrIds = str | list[int]
Batch = list[str] | list[list[int]] | list[TextOrIds]
Chats = Sequence[Message] | Sequence[Sequence[Message]]
Sampling = SamplingParams | Sequence[SamplingParams] | None

TO_GENERATE = SamplingParams(max_new_tokens=DEFAULT_NEW_TOKENS)
TO_CHAT = SamplingParams()

_OWN_NAMES = {
    "logprobs": "num_top_logprobs",
    "logprob_start_len": "prompt_logprobs_from",
    "token_ids_logprob": "logprob_ids",
}
"""The parameters that the HTTP APIs call otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A prompt that is a list of messages."""

    messages: Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One prompt as the caller gave it, how it is to be continued, and how many times."""

    prompt: str | Sequence[int] | Chat
    sampling: SamplingParams
    salt: str = ""
    num_samples: int = 1


def is_batch(prompts: TextOrIds | Batch) -> bool:
    """Whether there are several prompts, or one in a list."""
    return isinstance(prompts, list) and (not prompts or not isinstance(prompts[0], int))


def is_batch_of_chats(messages: Chats) -> bool:
    """Whether there are several chats, or one in a list."""
    return bool(messages) and not isinstance(messages[0], Mapping)


def wishes_of(prompts: TextOrIds | Batch, sampling: Sampling, *, salt: str, n: int | None) -> list[Wish]:
    """One wish for each prompt.

    Raises:
        Refused: a parameter has the wrong type.
        ValueError: there are not as many sampling parameters as prompts.
    """
    many: Sequence[Any] = prompts if is_batch(prompts) else [prompts]
    return _wishes(many, sampling, TO_GENERATE, salt, n)


def chat_wishes_of(messages: Chats, sampling: Sampling, *, salt: str, n: int | None) -> list[Wish]:
    """One wish for each chat; raises as `wishes_of`."""
    many: Sequence[Any] = messages if is_batch_of_chats(messages) else [messages]
    return _wishes([Chat(messages=each) for each in many], sampling, TO_CHAT, salt, n)


def typed(sampling: SamplingParams) -> SamplingParams:
    """The parameters with every value of its field's type; one string is a list of one, a mapping a list of pairs.

    Asking for the logprobs of chosen ids, or of the prompt, asks for logprobs.

    Raises:
        Refused: a value has another type; the error names its field.
    """
    if not isinstance(sampling, SamplingParams):
        raise Refused(f"sampling must be SamplingParams, got {type(sampling).__name__}.", field="sampling")
    given = msgspec.structs.asdict(sampling)
    for name in ("stop", "stop_regex"):
        if isinstance(given[name], str):
            given[name] = (given[name],)
    if isinstance(given["logit_bias"], Mapping):
        given["logit_bias"] = tuple(given["logit_bias"].items())
    if given["num_top_logprobs"] is None and (given["logprob_ids"] or given["prompt_logprobs_from"] is not None):
        given["num_top_logprobs"] = 0
    try:
        return msgspec.convert(given, SamplingParams)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        field = re.split(r"[^\w]+", path)[1]
        raise Refused(f"{field} has a wrong type: {what}. Change {field}.", field=field) from None


def in_own_words(error: AxilError) -> AxilError:
    """The error with a parameter's name as it is in SamplingParams."""
    field = error.field
    if field not in _OWN_NAMES:
        return error
    renamed = type(error)(re.sub(rf"\b{field}\b", _OWN_NAMES[field], error.message))
    renamed.field = _OWN_NAMES[field]
    return renamed


def _wishes(
    prompts: Sequence[Any], sampling: Sampling, default: SamplingParams, salt: str, n: int | None
) -> list[Wish]:
    if n is not None and (type(n) is not int or not 1 <= n <= MAX_SAMPLES):
        raise Refused(f"n must be a whole number in [1, {MAX_SAMPLES}], got {n!r}. Change n.", field="n")
    if not isinstance(salt, str):
        raise Refused(f"salt must be a string, got {type(salt).__name__}. Change salt.", field="salt")
    if not isinstance(sampling, Sequence):
        one = typed(default if sampling is None else sampling)
        return [Wish(prompt=prompt, sampling=one, salt=salt, num_samples=n or 1) for prompt in prompts]
    if len(sampling) != len(prompts):
        raise ValueError(
            f"sampling has {len(sampling)} entries and there are {len(prompts)} prompts; give one for each"
        )
    wishes = []
    for i, (prompt, one) in enumerate(zip(prompts, sampling, strict=True)):
        try:
            wishes.append(Wish(prompt=prompt, sampling=typed(one), salt=salt, num_samples=n or 1))
        except Refused as error:
            raise noted(error, i, len(prompts)) from None
    return wishes


def noted(error: BaseException, index: int, num_prompts: int) -> BaseException:
    """The error with a note that names its prompt, if there are several."""
    if num_prompts > 1:
        error.add_note(f"in the prompt with index {index}")
    return error
