"""`/v1/chat/completions`: OpenAI's API for chats, over the model's chat template."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from aiohttp import web

from runtime.generation import Generation, Prompt, TokenLogprob
from runtime.text.tokenizer import Tokenizer
from wire.errors import Refused
from wire.sampling import RANGES, SamplingParams

from .chat_prompt import CHAT_PROMPT_FIELDS, read_chat_prompt
from .errors import json_response, spelled
from .fields import Fields
from .front import FRONT
from .openai import OPENAI_FIELDS, Answering, begin, finish, read_openai_sampling
from .route import Route
from .sampling import read_num_samples, read_priority, read_salt
from .schema import boolean, ranged, record, unsupported
from .sse import merged, respond

CHAT_BODY = record(
    {
        **OPENAI_FIELDS,
        **CHAT_PROMPT_FIELDS,
        "max_tokens": ranged(RANGES["max_new_tokens"], "integer", text="Default: the rest of the context."),
        "max_completion_tokens": ranged(RANGES["max_new_tokens"], "integer", text="The newer name of max_tokens."),
        "logprobs": boolean(text="Tell the answer's logprobs."),
        "top_logprobs": ranged(RANGES["num_top_logprobs"], "integer", text="And those of the n most likely tokens."),
        **unsupported(
            {
                "tools": None,
                "functions": None,
                "modalities": ["text"],
                "audio": None,
                "prediction": None,
                "web_search_options": None,
                "input_ids": None,
            }
        ),
    },
    required=("messages",),
)
"""What `/v1/chat/completions` takes."""

_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "logprobs": "top_logprobs"}
_NEW_NAMES = {"max_new_tokens": "max_completion_tokens"}


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Give the assistant's next turn."""
    front = request.app[FRONT]
    times = front.generator.arrival()
    fields, answering = await begin(request, prefix="chatcmpl", kind="chat.completion.chunk")
    sampling = _read_sampling(fields)
    num_samples = read_num_samples(fields)
    salt, priority = read_salt(fields), read_priority(fields)
    token_ids = await read_chat_prompt(front, fields)
    front.warn_unknown(fields)
    prompt = Prompt(token_ids=token_ids, sampling=sampling, request_id=answering.id, salt=salt, priority=priority)
    names = _NAMES if fields.raw("max_completion_tokens") is None else _NAMES | _NEW_NAMES
    with spelled(names):
        async with front.generator.start_all(prompt.samples(num_samples), times) as generations:
            if answering.is_stream:
                frames = _frames(answering, generations, front.generator.tokenizer)
                return await respond(request, frames, request_id=answering.id)
            body = await _whole(answering, generations, front.generator.tokenizer)
    return json_response(body, headers={"X-Request-Id": answering.id})


async def _whole(answering: Answering, generations: Sequence[Generation], tokenizer: Tokenizer) -> dict[str, object]:
    pieces: list[list[str]] = [[] for _ in generations]
    tokens: list[list[TokenLogprob]] = [[] for _ in generations]
    endings: list[dict[str, object]] = [{} for _ in generations]
    async for i, delta in merged(generations):
        pieces[i].append(delta.text)
        tokens[i] += delta.logprobs
        endings[i] = finish(delta.end)
    choices: list[dict[str, object]] = [
        {
            "index": i,
            "message": {"role": "assistant", "content": "".join(pieces[i])},
            "logprobs": _logprobs(tokens[i], tokenizer) if _has_logprobs(generation) else None,
            **endings[i],
        }
        for i, generation in enumerate(generations)
    ]
    return {**answering.whole(choices, generations), "object": "chat.completion"}


async def _frames(
    answering: Answering, generations: Sequence[Generation], tokenizer: Tokenizer
) -> AsyncGenerator[dict[str, object], None]:
    begun: set[int] = set()
    async for i, delta in merged(generations):
        ending = finish(delta.end)
        own = [generations[i]]
        if i not in begun:
            begun.add(i)
            head = {"role": "assistant", "content": ""}
            yield answering.chunk([{"index": i, "delta": head, "logprobs": None, "finish_reason": None}], own)
        if delta.text or delta.logprobs:
            choice = {
                "index": i,
                "delta": {"content": delta.text},
                "logprobs": _logprobs(delta.logprobs, tokenizer) if _has_logprobs(generations[i]) else None,
                "finish_reason": None,
            }
            yield answering.chunk([choice], own)
        if delta.end is not None:
            yield answering.chunk([{"index": i, "delta": {}, "logprobs": None, **ending}], own)
    if answering.with_usage:
        yield answering.usage_chunk(generations)


def _has_logprobs(generation: Generation) -> bool:
    return generation.prompt.sampling.num_top_logprobs is not None


def _read_sampling(fields: Fields) -> SamplingParams:
    old_name, new_name = fields.integer("max_tokens"), fields.integer("max_completion_tokens")
    num_top = fields.integer("top_logprobs")
    with_logprobs = fields.boolean("logprobs", False)
    if num_top and not with_logprobs:
        raise Refused("top_logprobs needs logprobs to be true. Set logprobs.", field="top_logprobs")
    return read_openai_sampling(
        fields,
        max_new_tokens=old_name if new_name is None else new_name,
        num_top_logprobs=(num_top or 0) if with_logprobs else None,
    )


def _logprobs(tokens: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, object]:
    def entry(token_id: int, logprob: float | None) -> dict[str, object]:
        value = tokenizer.token_bytes(token_id)
        return {"token": value.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(value)}

    content = [
        entry(token.token_id, token.logprob) | {"top_logprobs": [entry(*pair) for pair in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


ROUTES = (
    Route(
        method="POST",
        path="/v1/chat/completions",
        handler=chat_completions,
        is_work=True,
        body=CHAT_BODY,
        examples=(
            {"messages": [{"role": "user", "content": "What is gravity?"}], "max_tokens": 64},
            {
                "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
                "stream": True,
                "stream_options": {"include_usage": True},
                "response_format": {"type": "json_object"},
                "max_tokens": 32,
            },
        ),
    ),
)
