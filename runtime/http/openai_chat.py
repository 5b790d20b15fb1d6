"""`/v1/chat/completions`: OpenAI's API for chats, over the model's chat template."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence, Set

from aiohttp import web

from runtime.generation import Generation, Prompt, TokenLogprob
from runtime.text.template import USUAL_ROLES, Message, template_variables
from runtime.text.tokenizer import Tokenizer
from wire.errors import Refused
from wire.sampling import SamplingParams

from .errors import json_response, spelled
from .fields import Fields, shown
from .front import FRONT, Front
from .openai import Answering, begin, finish, read_openai_sampling
from .sampling import read_num_samples, read_priority, read_salt
from .sse import merged, respond

_UNSUPPORTED: dict[str, object] = {
    "tools": None,
    "functions": None,
    "modalities": ["text"],
    "audio": None,
    "prediction": None,
    "web_search_options": None,
    "input_ids": None,
}

_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "logprobs": "top_logprobs"}
_NEW_NAMES = {"max_new_tokens": "max_completion_tokens"}

_MESSAGE_CHARACTERS = 32
"""Reading and rendering a message takes the time of tokenising that many characters, besides its text."""


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Give the assistant's next turn."""
    front = request.app[FRONT]
    times = front.generator.arrival()
    fields, answering = await begin(request, unsupported=_UNSUPPORTED, prefix="chatcmpl", kind="chat.completion.chunk")
    sampling = _read_sampling(fields)
    num_samples = read_num_samples(fields)
    salt, priority = read_salt(fields), read_priority(fields)
    token_ids = await _read_prompt(front, fields)
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


async def _read_prompt(front: Front, fields: Fields) -> list[int]:
    given = fields.raw("messages")
    num_messages = len(given) if isinstance(given, list) else 0
    roles = USUAL_ROLES if front.template is None else front.template.roles
    messages = await front.generator.off_loop(num_messages * _MESSAGE_CHARACTERS, lambda: _read_messages(fields, roles))
    variables = template_variables(fields.mapping("chat_template_kwargs"))
    is_open = fields.boolean("continue_final_message", False)
    with_prompt = fields.boolean("add_generation_prompt", not is_open)
    if is_open and with_prompt:
        raise Refused(
            "continue_final_message and add_generation_prompt can't both be true. Set one of them.",
            field="add_generation_prompt",
        )
    template = front.template
    if template is None:
        raise Refused(
            "this model has no chat template. Use /v1/completions, or start the server with --chat-template FILE.",
            field="messages",
        )

    def rendered() -> str:
        if is_open:
            return template.render_open(messages, variables=variables)
        return template.render(messages, add_generation_prompt=with_prompt, variables=variables)

    num_characters = sum(_MESSAGE_CHARACTERS + len(str(message["content"])) for message in messages)
    text = await front.generator.off_loop(num_characters, rendered)
    # The template has written the special tokens itself.
    return await front.generator.encode(text, add_special_tokens=False, field="messages")


def _read_messages(fields: Fields, roles: Set[str]) -> list[Message]:
    items = fields.items("messages")
    if not items:
        raise Refused("messages is empty; it must hold at least one message. Send one.", field="messages")
    messages = []
    for item in items:
        role = item.string("role")
        if not role:
            raise Refused(f"{item.name('role')} is missing. Set it to user, for example.", field=item.name("role"))
        if role not in roles:
            raise item.wrong_type("role", f"one of {', '.join(sorted(roles))}", role)
        messages.append({**item.everything(), "content": _content(item)})
    return messages


def _content(item: Fields) -> str:
    """A message's text; several text parts are joined by line ends."""
    value = item.raw("content")
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return "\n".join(_part(part) for part in item.items("content"))
        case _:
            raise item.wrong_type("content", "a string or a list of parts", value)


def _part(part: Fields) -> str:
    kind = part.string("type")
    if kind != "text":
        raise Refused(
            f"{part.name('type')} must be text, got {shown(kind)}: this model reads text only. Leave the part out.",
            field=part.name("type"),
        )
    text = part.string("text")
    if text is None:
        raise part.wrong_type("text", "a string", text)
    return text


def _logprobs(tokens: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, object]:
    def entry(token_id: int, logprob: float | None) -> dict[str, object]:
        value = tokenizer.token_bytes(token_id)
        return {"token": value.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(value)}

    content = [
        entry(token.token_id, token.logprob) | {"top_logprobs": [entry(*pair) for pair in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}
