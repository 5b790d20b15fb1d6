"""An axil server by URL, or another that speaks SGLang's native API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from axil.lang.backend import Answer, Prompt, Scored, Scores, TokenLogprob, Usage, Wish
from axil.lang.choices import departure
from wire.errors import Cancelled

from .chat_answers import chat_body, open_turn, read_chat, read_chat_events
from .http import DEFAULT_RETRY_S, DEFAULT_TIMEOUT_S, Connection, Remote

DEFAULT_OPEN = 256


class Server(Remote):
    """Answers calls by requests to `url`; connections are kept. Close it, or use it as a context manager."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_S,
        retry_seconds: float = DEFAULT_RETRY_S,
        max_open: int = DEFAULT_OPEN,
    ) -> None:
        super().__init__(
            Connection(url, api_key=api_key, timeout_s=timeout_seconds, retry_s=retry_seconds), max_open=max_open
        )

    async def generate(self, prompt: Prompt, wish: Wish, put: Callable[[str], None] | None) -> Answer:
        """Continue plain text by `/generate`, a chat by `/v1/chat/completions`."""
        if prompt.role is not None:
            body = {**chat_body(prompt, wish), **_own_chat_fields(wish)}
            if put is None:
                return read_chat(await self._connection.post("/v1/chat/completions", body))
            return await read_chat_events(self._connection, "/v1/chat/completions", body, put)
        body = {"text": prompt.text, "sampling_params": _sampling(wish), **_logprob_fields(wish)}
        if put is None:
            found = await self._connection.post("/generate", body)
            return _read(found if isinstance(found, list) else [found])
        samples: dict[int, dict[str, Any]] = {}
        seen = 0
        async for event in self._connection.events("/generate", {**body, "stream": True}):
            i = event.get("index", 0)
            samples[i] = event
            if i == 0:
                # The text of each event is all of it so far.
                put(event["text"][seen:])
                seen = len(event["text"])
        return _read([samples[i] for i in sorted(samples)])

    async def score(self, prompt: Prompt, choices: Sequence[str]) -> Scores:
        """Give the logprobs of each choice's tokens behind the prompt, all in one request."""
        before, *whole = await self._token_ids(prompt, ["", *choices])
        return await self._scored(whole, departure(before, whole))

    async def score_alone(self, token_ids: Sequence[Sequence[int]]) -> Scores:
        """Give the logprobs of each list's tokens with nothing before them."""
        return await self._scored([list(each) for each in token_ids], 0)

    async def _token_ids(self, prompt: Prompt, endings: Sequence[str]) -> list[list[int]]:
        """Token ids of the prompt with each of several endings."""
        if prompt.role is None:
            texts = [prompt.text + ending for ending in endings]
            found: dict[str, Any] = await self._connection.post("/tokenize", {"prompt": texts})
            return [list(ids) for ids in found["tokens"]]
        bodies = [open_turn(prompt, ending) for ending in endings]
        return [(await self._connection.post("/tokenize", body))["tokens"] for body in bodies]

    async def _scored(self, whole: Sequence[list[int]], start: int) -> Scores:
        body = {
            "input_ids": list(whole),
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": start,
        }
        found = await self._connection.post("/generate", body)
        choices = []
        for ids, each in zip(whole, found, strict=True):
            told = dict(_positions(each, len(ids)))
            logprobs = tuple(float(told[i][0] or 0.0) if i in told else 0.0 for i in range(start, len(ids)))
            choices.append(Scored(token_ids=tuple(ids[start:]), logprobs=logprobs))
        return Scores(choices=tuple(choices), usage=_usage(found))


def _positions(answer: dict[str, Any], num_tokens: int) -> list[tuple[int, list[Any]]]:
    """The prompt's logprobs with their positions: they are those of its last tokens."""
    triples = answer["meta_info"]["input_token_logprobs"]
    first = num_tokens - len(triples)
    return [(first + i, triple) for i, triple in enumerate(triples)]


def _sampling(wish: Wish) -> dict[str, object]:
    fields: dict[str, object] = {
        "max_new_tokens": wish.max_tokens,
        "min_new_tokens": wish.min_tokens,
        "n": wish.n if wish.n > 1 else None,
        "stop": list(wish.stop),
        "stop_token_ids": list(wish.stop_token_ids),
        "stop_regex": list(wish.stop_regex),
        "temperature": wish.temperature,
        "top_p": wish.top_p,
        "top_k": wish.top_k,
        "min_p": wish.min_p,
        "frequency_penalty": wish.frequency_penalty,
        "presence_penalty": wish.presence_penalty,
        "repetition_penalty": wish.repetition_penalty,
        "logit_bias": {str(token_id): bias for token_id, bias in wish.logit_bias},
        "sampling_seed": wish.seed,
        "ignore_eos": wish.ignore_eos,
        "regex": wish.forced_regex,
        "json_schema": wish.json_schema,
    }
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _own_chat_fields(wish: Wish) -> dict[str, object]:
    """What SGLang's dialect adds to OpenAI's chats."""
    own = _sampling(wish)
    names = ("stop_token_ids", "stop_regex", "top_k", "min_p", "repetition_penalty", "ignore_eos", "regex")
    fields = {name: own[name] for name in names if name in own}
    if wish.min_tokens is not None:
        fields["min_tokens"] = wish.min_tokens
    return fields


def _logprob_fields(wish: Wish) -> dict[str, object]:
    if wish.num_top_logprobs is None:
        return {}
    return {"return_logprob": True, "top_logprobs_num": wish.num_top_logprobs, "return_text_in_logprobs": True}


def _read(samples: Sequence[dict[str, Any]]) -> Answer:
    """The answers, which are whole.

    Raises:
        Cancelled: somebody has aborted one.
    """
    for sample in samples:
        reason = sample["meta_info"]["finish_reason"] or {}
        if reason.get("type") == "abort":
            raise Cancelled(f"the answer was cut off: {reason.get('message') or 'it was aborted'}. Ask again.")
    return Answer(
        texts=tuple(sample["text"] for sample in samples),
        finish_reasons=tuple((sample["meta_info"]["finish_reason"] or {}).get("type", "") for sample in samples),
        usage=_usage(samples, is_one_prompt=True),
        logprobs=tuple(_logprobs(sample["meta_info"]) for sample in samples),
    )


def _logprobs(meta: dict[str, Any]) -> tuple[TokenLogprob, ...]:
    tokens = meta.get("output_token_logprobs") or []
    tops = meta.get("output_top_logprobs") or [None] * len(tokens)
    return tuple(
        TokenLogprob(text, logprob, tuple((other, value) for value, _, other in top or ()), token_id)
        for (logprob, token_id, text), top in zip(tokens, tops, strict=True)
    )


def _usage(samples: Sequence[dict[str, Any]], *, is_one_prompt: bool = False) -> Usage:
    metas = [sample["meta_info"] for sample in samples]
    prompts = metas[:1] if is_one_prompt else metas
    told = [meta.get("cached_tokens") for meta in prompts]
    return Usage(
        prompt_tokens=sum(meta["prompt_tokens"] for meta in prompts),
        cached_tokens=None if None in told else sum(told),
        completion_tokens=sum(meta.get("completion_tokens", 0) for meta in metas),
    )
