"""OpenAI's chat completions as calls see them: bodies made, answers read. Shared by the backends that speak it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from axil.lang.backend import Answer, Prompt, TokenLogprob, Usage, Wish

from .http import Connection


def open_turn(prompt: Prompt, more: str = "") -> dict[str, Any]:
    """The messages, and how the last one is to be gone on with."""
    messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
    text = prompt.text + more
    if prompt.role == "assistant" and not text:
        return {"messages": messages, "add_generation_prompt": True}
    last = {"role": prompt.role, "content": text}
    return {"messages": [*messages, last], "add_generation_prompt": False, "continue_final_message": True}


def chat_body(prompt: Prompt, wish: Wish) -> dict[str, Any]:
    """The fields that OpenAI's API has, and those of an open turn."""
    body: dict[str, Any] = {
        **open_turn(prompt),
        "max_completion_tokens": wish.max_tokens,
        "n": wish.n if wish.n > 1 else None,
        "stop": list(wish.stop) or None,
        "temperature": wish.temperature,
        "top_p": wish.top_p,
        "frequency_penalty": wish.frequency_penalty,
        "presence_penalty": wish.presence_penalty,
        "logit_bias": {str(token_id): bias for token_id, bias in wish.logit_bias} or None,
        "seed": wish.seed,
    }
    if wish.json_schema is not None:
        schema = {"name": "answer", "schema": orjson.loads(wish.json_schema), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if wish.num_top_logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": wish.num_top_logprobs}
    return {name: value for name, value in body.items() if value is not None}


def read_chat(found: dict[str, Any]) -> Answer:
    """An answer that came whole."""
    choices = sorted(found["choices"], key=lambda choice: choice["index"])
    return Answer(
        texts=tuple(choice["message"]["content"] or "" for choice in choices),
        finish_reasons=tuple(choice["finish_reason"] or "" for choice in choices),
        usage=usage_of(found.get("usage")),
        logprobs=tuple(_logprobs(choice.get("logprobs")) for choice in choices),
    )


async def read_chat_events(
    connection: Connection, path: str, body: dict[str, Any], put: Callable[[str], None]
) -> Answer:
    """An answer that comes piece by piece."""
    texts: dict[int, list[str]] = {}
    reasons: dict[int, str] = {}
    logprobs: dict[int, tuple[TokenLogprob, ...]] = {}
    usage: dict[str, Any] | None = None
    async for event in connection.events(path, {**body, "stream": True, "stream_options": {"include_usage": True}}):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            i = choice["index"]
            piece = choice["delta"].get("content") or ""
            texts.setdefault(i, []).append(piece)
            reasons[i] = choice.get("finish_reason") or reasons.get(i, "")
            logprobs[i] = logprobs.get(i, ()) + _logprobs(choice.get("logprobs"))
            if i == 0 and piece:
                put(piece)
    order = sorted(texts)
    return Answer(
        texts=tuple("".join(texts[i]) for i in order),
        finish_reasons=tuple(reasons[i] for i in order),
        usage=usage_of(usage),
        logprobs=tuple(logprobs[i] for i in order),
    )


def usage_of(usage: dict[str, Any] | None) -> Usage:
    """Tokens as OpenAI's API tells them; the cached ones where it does."""
    if usage is None:
        return Usage()
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=details.get("cached_tokens"),
        completion_tokens=usage["completion_tokens"],
    )


def _logprobs(told: dict[str, Any] | None) -> tuple[TokenLogprob, ...]:
    if not told or not told.get("content"):
        return ()
    return tuple(
        TokenLogprob(
            each["token"], each["logprob"], tuple((top["token"], top["logprob"]) for top in each["top_logprobs"])
        )
        for each in told["content"]
    )
