"""What a program asks an engine for: prompts in their several forms, and sampling parameters with checked types.

Knows no processes and no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypedDict, cast

import msgspec

from wire.errors import AxilError, Refused
from wire.names import near
from wire.sampling import MAX_SAMPLES, Grammar, SamplingParams

from .generation import MAX_CACHE_PRIORITY, MAX_CACHE_TTL_S, MAX_PRIORITY

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
    """A prompt that is a list of messages; with `is_open`, the answer goes on in the last of them."""

    messages: Sequence[Message]
    is_open: bool = False


class Options(TypedDict, total=False):
    """What else a call may say of all its prompts; the defaults and limits are those of `/generate`."""

    salt: str
    priority: int
    cache_priority: int
    cache_ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One prompt as the caller gave it, how it is to be continued, and how many times."""

    prompt: str | Sequence[int] | Chat
    sampling: SamplingParams
    salt: str = ""
    priority: int = 0
    cache_priority: int = 0
    cache_ttl_s: float = 0.0
    num_samples: int = 1


def is_batch(prompts: TextOrIds | Batch) -> bool:
    """Whether there are several prompts, or one in a list."""
    return isinstance(prompts, list) and (not prompts or isinstance(prompts[0], str | list | tuple))


def is_batch_of_chats(messages: Chats) -> bool:
    """Whether there are several chats, or one in a list."""
    return isinstance(messages, list | tuple) and bool(messages) and isinstance(messages[0], list | tuple)


def wishes_of(prompts: TextOrIds | Batch, sampling: Sampling, *, n: int | None, options: Options) -> list[Wish]:
    """One wish for each prompt.

    Raises:
        Refused: a parameter has the wrong type.
        ValueError: there are not as many sampling parameters as prompts.
    """
    many: Sequence[Any] = prompts if is_batch(prompts) else [prompts]
    return _wishes(many, _checked_prompt, sampling, TO_GENERATE, options, n)


def chat_wishes_of(messages: Chats, sampling: Sampling, *, n: int | None, options: Options) -> list[Wish]:
    """One wish for each chat; raises as `wishes_of`."""
    many: Sequence[Any] = messages if is_batch_of_chats(messages) else [messages]
    return _wishes(many, _checked_chat, sampling, TO_CHAT, options, n)


def one_wish(prompt: TextOrIds, sampling: SamplingParams | None, *, n: int | None, options: Options) -> Wish:
    """The wish for one prompt; raises as `wishes_of`."""
    return _wishes([prompt], _checked_prompt, sampling, TO_GENERATE, options, n)[0]


def one_chat_wish(
    messages: Sequence[Message], sampling: SamplingParams | None, *, n: int | None, options: Options
) -> Wish:
    """The wish for one chat; raises as `wishes_of`."""
    return _wishes([messages], _checked_chat, sampling, TO_CHAT, options, n)[0]


def typed(sampling: SamplingParams) -> SamplingParams:
    """The parameters with every value of its field's type; one string is a list of one, a mapping a list of pairs.

    Asking for the logprobs of chosen ids, or of the prompt, asks for logprobs.

    Raises:
        Refused: a value has another type; the error names its field.
    """
    if not isinstance(sampling, SamplingParams):
        raise Refused(f"sampling must be SamplingParams, got {type(sampling).__name__}.", field="sampling")
    if not isinstance(sampling.grammar, Grammar | None):
        raise Refused(
            f"grammar must come from axil.json_schema, regex, choice or ebnf, got {type(sampling.grammar).__name__}.",
            field="grammar",
        )
    given = msgspec.structs.asdict(sampling)
    for name in ("stop", "stop_regex"):
        if isinstance(given[name], str):
            given[name] = (given[name],)
    if isinstance(given["logit_bias"], Mapping):
        given["logit_bias"] = tuple(given["logit_bias"].items())
    if given["num_top_logprobs"] is None and (given["logprob_ids"] or given["prompt_logprobs_from"] is not None):
        given["num_top_logprobs"] = 0
    try:
        params = msgspec.convert(given, SamplingParams)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        field = re.split(r"[^\w]+", path)[1]
        raise Refused(f"{field} has a wrong type: {what}. Change {field}.", field=field) from None
    for field, strings in (("stop", params.stop), ("stop_regex", params.stop_regex)):
        for string in strings:
            _check_text(string, field)
    return params


def in_own_words(error: AxilError) -> AxilError:
    """The error with a parameter's name as it is in SamplingParams."""
    field = error.field
    if field not in _OWN_NAMES:
        return error
    renamed = type(error)(re.sub(rf"\b{field}\b", _OWN_NAMES[field], error.message))
    renamed.field = _OWN_NAMES[field]
    return renamed


def _wishes(
    prompts: Sequence[Any],
    check: Callable[[Any], str | list[int] | Chat],
    sampling: Sampling,
    default: SamplingParams,
    options: Options,
    n: int | None,
) -> list[Wish]:
    if n is not None and (type(n) is not int or not 1 <= n <= MAX_SAMPLES):
        raise Refused(f"n must be a whole number in [1, {MAX_SAMPLES}], got {n!r}. Change n.", field="n")
    _check_options(options)
    if isinstance(sampling, Sequence) and len(sampling) != len(prompts):
        raise ValueError(
            f"sampling has {len(sampling)} entries and there are {len(prompts)} prompts; give one for each"
        )
    wishes = []
    for i, prompt in enumerate(prompts):
        one = sampling[i] if isinstance(sampling, Sequence) else sampling
        try:
            own = typed(default if one is None else one)
            wishes.append(Wish(prompt=check(prompt), sampling=own, num_samples=n or 1, **options))
        except Refused as error:
            raise noted(error, i, len(prompts)) from None
    return wishes


def _check_options(options: Options) -> None:
    """As the HTTP fields of these names are checked; a name that there is not is a TypeError, as in any call."""
    for name in options.keys() - Options.__annotations__.keys():
        known = ", ".join(Options.__annotations__)
        is_sampling = name in SamplingParams.__struct_fields__
        meant = (
            f": it belongs into axil.SamplingParams({name}=…)" if is_sampling else near(name, Options.__annotations__)
        )
        raise TypeError(f"there is no option {name!r}{meant or f'; there are {known}'}")
    _check_text(options.get("salt", ""), "salt")
    for name, kinds, low, high in (
        ("priority", (int,), -MAX_PRIORITY, MAX_PRIORITY),
        ("cache_priority", (int,), 0, MAX_CACHE_PRIORITY),
        ("cache_ttl_s", (int, float), 0, MAX_CACHE_TTL_S),
    ):
        value = cast(Mapping[str, object], options).get(name, 0)
        if not isinstance(value, kinds) or isinstance(value, bool) or not low <= value <= high:
            what = "a whole number" if kinds == (int,) else "a number"
            raise Refused(f"{name} must be {what} in [{low}, {high}], got {value!r}. Change {name}.", field=name)


def _checked_prompt(prompt: object) -> str | list[int]:
    if isinstance(prompt, str):
        _check_text(prompt, "prompt")
        return prompt
    if not isinstance(prompt, list | tuple):
        kind = type(prompt).__name__
        raise Refused(f"prompt must be text or a list of token ids, got {kind}. Change prompt.", field="prompt")
    kinds = set(map(type, prompt))
    if kinds <= {int}:
        return list(prompt)
    if bool not in kinds and all(hasattr(kind, "__index__") for kind in kinds):
        return [index(token_id) for token_id in prompt]
    raise Refused("prompt holds something else than token ids among them. Change prompt.", field="prompt")


def _checked_chat(messages: object) -> Chat:
    if not isinstance(messages, list | tuple):
        kind = type(messages).__name__
        raise Refused(f"messages must be a list of messages, got {kind}. Change messages.", field="messages")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            field = f"messages[{i}]"
            raise Refused(f"{field} must have role and content, got {type(message).__name__}.", field=field)
        for name in ("role", "content"):
            _check_text(message.get(name), f"messages[{i}].{name}")
    return Chat(messages=messages)


def _check_text(text: object, field: str) -> None:
    if not isinstance(text, str):
        raise Refused(f"{field} must be a string, got {type(text).__name__}. Change {field}.", field=field)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused(f"{field} is no text: {error}. Change {field}.", field=field) from None


def noted(error: BaseException, index: int, num_prompts: int) -> BaseException:
    """The error with a note that names its prompt, if there are several."""
    if num_prompts > 1:
        error.add_note(f"in the prompt with index {index}")
    return error
