"""`/generate`: SGLang's native API, single or batch; streamed cumulatively, or as what is new by a flag."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web
from msgspec.structs import replace

from runtime.generation import Prompt
from runtime.generator import check_num_answers, check_num_prompts
from runtime.merged import merged
from wire.errors import Refused
from wire.sampling import RANGES, SamplingParams

from .cache_hints import HINT_FIELDS, read_cache_priority, read_cache_ttl_s
from .errors import json_response, spelled
from .explained import EXPLAIN_FIELD, explain, is_asked
from .fields import Fields, is_integers, read_fields
from .front import FRONT, Front
from .generate_answers import Answer, AnswerEvents, AnswerForm
from .live import stream
from .route import Route
from .sampling import (
    CACHE_FIELDS,
    MAX_SALT_CHARACTERS,
    SAMPLING_FIELDS,
    OwnNames,
    checked_rid,
    read_num_samples,
    read_priority,
    read_salt,
    read_sampling,
)
from .schema import (
    anything,
    boolean,
    either,
    for_each,
    integer,
    list_of,
    one_or_list,
    ranged,
    record,
    string,
    unsupported,
)
from .structured import FORM_FIELDS, read_grammar

DEFAULT_NEW_TOKENS = 128

T = TypeVar("T")

_NAMES = {"logprobs": "top_logprobs_num", "seed": "sampling_seed"}

_UNSUPPORTED: dict[str, object] = dict.fromkeys(
    (
        "input_embeds",
        "image_data",
        "video_data",
        "audio_data",
        "lora_path",
        "session_params",
        "return_hidden_states",
        "custom_logit_processor",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "return_routed_experts",
        "return_sampling_mask",
        "return_entropy",
        "modalities",
        "mm_hashes",
        "require_reasoning",
        "max_thinking_tokens",
        "bootstrap_pair_key",
        "disagg_prefill_dp_rank",
    )
)

_NOT_NEEDED = ("routing_key", "conversation_id", "custom_labels", "kv_hints", "background", "log_metrics", "no_logs")

_SAMPLING_PARAMS = record(
    {
        **SAMPLING_FIELDS,
        **FORM_FIELDS,
        "max_new_tokens": ranged(RANGES["max_new_tokens"], "integer", text="Default 128; 0 computes the prompt only."),
        "min_new_tokens": ranged(RANGES["min_new_tokens"], "integer", text="No end before so many tokens."),
        "sampling_seed": ranged(RANGES["seed"], "integer", text="Makes a sampled answer repeatable."),
        "stream_interval": integer(1, text="Stream a frame for every so many tokens; the first is sent at once."),
    }
)

GENERATE_BODY = record(
    {
        **CACHE_FIELDS,
        **HINT_FIELDS,
        **EXPLAIN_FIELD,
        "text": one_or_list(string(), text="The prompt, or several. Either this or input_ids."),
        "input_ids": either(list_of(integer()), list_of(list_of(integer())), text="The same as token ids."),
        "sampling_params": for_each(_SAMPLING_PARAMS),
        "stream": boolean(text="Send the answer as server-sent events."),
        "rid": one_or_list(string(), text="The request's id; on a batch, a string is a prefix."),
        "return_logprob": for_each(boolean()),
        "logprob_start_len": for_each(integer(-1), text="Also tell the logprobs of the prompt from here on; -1: not."),
        "top_logprobs_num": for_each(ranged(RANGES["num_top_logprobs"], "integer")),
        "token_ids_logprob": either(list_of(integer()), list_of(either(list_of(integer()), {"type": "null"}))),
        "return_text_in_logprobs": boolean(text="Put the token's text third in each logprob."),
        "return_prompt_token_ids": boolean(text="Add prompt_token_ids to the answer."),
        "cache_salt": for_each(string(longest=MAX_SALT_CHARACTERS), text="Requests of different salts share no cache."),
        "extra_key": for_each(string(longest=MAX_SALT_CHARACTERS), text="Another name of cache_salt."),
        "session_id": string(text="Said again in meta_info, so that requests can be told apart by session."),
        "data_parallel_rank": integer(0, 0, text="There is one replica."),
        "routed_dp_rank": integer(0, 0, text="There is one replica."),
        **{name: anything(text="Taken and not needed.") for name in _NOT_NEEDED},
        **unsupported(_UNSUPPORTED),
    }
)
"""What `/generate` takes."""


async def generate(request: web.Request) -> web.StreamResponse:
    """Answer one prompt or a list of them; several answers to one prompt stand side by side."""
    front = request.app[FRONT]
    times = front.generator.arrival()
    fields = await read_fields(request)
    token_ids, is_batch = await _read_prompts(front, fields)
    prompts, intervals = _read_items(front, fields, token_ids, is_batch=is_batch)
    if fields.raw("text") is not None:
        front.window.take_texts(fields.strings("text"), prompts)
    is_batch = is_batch or len(prompts) > 1
    is_explained = is_asked(request, by_field=fields.boolean("explain_cache", False))
    wish = AnswerForm(
        with_text_in_logprobs=fields.boolean("return_text_in_logprobs", False),
        with_prompt_ids=fields.boolean("return_prompt_token_ids", False),
        is_batch=is_batch,
        is_incremental=front.launch.config.incremental_streaming_output,
        session_id=fields.string("session_id") or None,
    )
    is_stream = fields.boolean("stream", False)
    for name in ("data_parallel_rank", "routed_dp_rank", *_NOT_NEEDED):  # there is one replica: nothing to choose
        fields.raw(name)
    front.warn_unknown(fields)
    with spelled(_NAMES):
        async with front.generator.start_all(prompts, times) as generations:
            if is_explained:
                wish = dataclasses.replace(wish, explained=explain(request, generations))
            answers = [
                Answer(generation, wish, front.generator.tokenizer, interval_tokens=interval)
                for generation, interval in zip(generations, intervals, strict=True)
            ]
            if is_stream:
                events = AnswerEvents(answers, wish)
                return await stream(request, generations, events, request_id=prompts[0].request_id)
            async for i, delta in merged(generations):
                answers[i].add(delta)
            if wish.explained is not None:
                await wish.explained.complete()
    bodies = [answer.body() for answer in answers]
    return json_response(bodies if is_batch else bodies[0], headers={"X-Request-Id": prompts[0].request_id})


async def _read_prompts(front: Front, fields: Fields) -> tuple[list[list[int]], bool]:
    text, input_ids = fields.raw("text"), fields.raw("input_ids")
    if (text is None) == (input_ids is None):
        raise Refused("exactly one of text and input_ids must be given. Send one of them.", field="text")
    generator = front.generator
    if text is not None:
        texts = fields.strings("text")
        if not texts:
            raise Refused("text is an empty list; it must hold at least one prompt. Send a prompt.", field="text")
        encoded = await generator.encode_all(texts, add_special_tokens=True, field="text")
        return encoded, isinstance(text, list)
    if not isinstance(input_ids, list):
        raise fields.wrong_type("input_ids", "a list of integers or of such lists", input_ids)
    is_batch = bool(input_ids) and isinstance(input_ids[0], list)
    batch = input_ids if is_batch else [input_ids]
    check_num_prompts(len(batch), field="input_ids")
    for each in batch:
        if not isinstance(each, list) or not is_integers(each):
            raise fields.wrong_type("input_ids", "a list of integers or of such lists", each)
    return [generator.checked_ids(each, field="input_ids") for each in batch], is_batch


def _read_items(
    front: Front, fields: Fields, token_ids: list[list[int]], *, is_batch: bool
) -> tuple[list[Prompt], list[int]]:
    """What to generate, several answers to one prompt side by side, and after how many tokens each is to be told."""
    num_items = len(token_ids)
    rids = _read_rids(fields, num_items, is_batch=is_batch)
    sampling_fields = _per_item(fields, "sampling_params", num_items, lambda one: one.fields("sampling_params"))
    top_logprobs = _per_item(fields, "top_logprobs_num", num_items, lambda one: one.integer("top_logprobs_num"))
    with_logprobs = _per_item(fields, "return_logprob", num_items, lambda one: one.boolean("return_logprob", False))
    starts = _per_item(fields, "logprob_start_len", num_items, lambda one: one.integer("logprob_start_len"))
    chosen_ids = _read_chosen_ids(fields, num_items)
    salts = _read_salts(fields, num_items)
    priority = read_priority(fields)
    # One object may stand for all prompts, and hold much: it is read once.
    own = {id(each): each for each in sampling_fields}
    wishes = {key: _read_wish(front, each) for key, each in own.items()}
    cache_priority, cache_ttl_s = read_cache_priority(fields), read_cache_ttl_s(fields)
    prompts: list[Prompt] = []
    intervals: list[int] = []
    for i in range(num_items):
        sampling, num_samples, interval_tokens = wishes[id(sampling_fields[i])]
        check_num_answers(len(prompts) + num_samples, field="n")
        if with_logprobs[i]:
            sampling = replace(
                sampling,
                num_top_logprobs=top_logprobs[i] or 0,
                logprob_ids=chosen_ids[i],
                prompt_logprobs_from=_first_logprob(starts[i], sampling),
            )
        prompt = Prompt(
            token_ids=token_ids[i],
            sampling=sampling,
            request_id=rids[i],
            salt=salts[i],
            priority=priority,
            cache_priority=cache_priority,
            cache_ttl_s=cache_ttl_s,
        )
        prompts += prompt.samples(num_samples)
        intervals += [interval_tokens] * num_samples
    return prompts, intervals


def _first_logprob(start: int | None, sampling: SamplingParams) -> int | None:
    """From where on the prompt's logprobs are told. Who wants no tokens and yet logprobs means all of the prompt's."""
    if start is None:
        return 0 if sampling.max_new_tokens == 0 else None
    return None if start == -1 else start


def _read_wish(front: Front, own: Fields) -> tuple[SamplingParams, int, int]:
    """One `sampling_params` object, how many answers it asks for, and after how many tokens each is to be told."""
    wanted = own.integer("max_new_tokens")
    names = OwnNames(
        max_new_tokens=DEFAULT_NEW_TOKENS if wanted is None else wanted,
        min_new_tokens=own.integer("min_new_tokens"),
        seed=own.integer("sampling_seed"),
        num_top_logprobs=None,
        grammar=read_grammar(own),
    )
    wish = read_sampling(own, names), read_num_samples(own), own.integer("stream_interval") or 1
    front.warn_unknown(own)
    return wish


def _per_item(fields: Fields, name: str, num_items: int, read: Callable[[Fields], T]) -> list[T]:
    """A field that may be one value for all prompts or a list with one each."""
    value = fields.raw(name)
    if not isinstance(value, list):
        return [read(fields)] * num_items
    if len(value) != num_items:
        raise fields.wrong_type(name, f"one value or a list of {num_items}, one for each prompt", value)
    return [read(fields.each(name, item)) for item in value]


def _read_salts(fields: Fields, num_items: int) -> list[str]:
    if not any(isinstance(fields.raw(name), list) for name in ("cache_salt", "extra_key")):
        return [read_salt(fields)] * num_items
    salts = _per_item(fields, "cache_salt", num_items, lambda one: one.string("cache_salt") or "")
    extras = _per_item(fields, "extra_key", num_items, lambda one: one.string("extra_key") or "")
    if any(salt and extra for salt, extra in zip(salts, extras, strict=True)):
        raise fields.wrong_type("extra_key", "absent when cache_salt is given", fields.raw("extra_key"))
    return [salt or extra for salt, extra in zip(salts, extras, strict=True)]


def _read_chosen_ids(fields: Fields, num_items: int) -> list[tuple[int, ...]]:
    """`token_ids_logprob`: one list of ids for all prompts, or a list of such lists with one each."""
    name = "token_ids_logprob"
    value = fields.raw(name)
    if isinstance(value, list) and any(isinstance(each, list) for each in value):
        return _per_item(fields, name, num_items, lambda one: one.integers(name))
    return [fields.integers(name)] * num_items


def _read_rids(fields: Fields, num_items: int, *, is_batch: bool) -> list[str]:
    value = fields.raw("rid")
    if isinstance(value, list):
        rids = list(fields.strings("rid"))
        if len(rids) != num_items:
            raise fields.wrong_type("rid", f"a string or a list of {num_items}, one for each prompt", value)
        return [checked_rid(rid) for rid in rids]
    rid = fields.string("rid")
    if rid is None:
        return [uuid.uuid4().hex for _ in range(num_items)]
    checked_rid(rid)
    return [f"{rid}_{i}" for i in range(num_items)] if is_batch else [rid]


_EXAMPLES: tuple[dict[str, object], ...] = (
    {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}},
    {"input_ids": [[72, 105], [72]], "sampling_params": [{"max_new_tokens": 1}, {"n": 2}], "return_logprob": True},
    {"text": "hello", "stream": True, "rid": "a1", "sampling_params": {"stop": ["\n"], "regex": "[a-z]+"}},
)

ROUTES = (
    Route(method="POST", path="/generate", handler=generate, is_work=True, body=GENERATE_BODY, examples=_EXAMPLES),
    Route(method="PUT", path="/generate", handler=generate, is_work=True, body=GENERATE_BODY, examples=_EXAMPLES),
)
