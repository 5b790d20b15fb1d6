"""Any server that speaks OpenAI's completions and chat completions; what it can't do is refused clearly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from axil.lang.backend import Answer, Prompt, Scores, TokenLogprob, Wish
from axil.lang.errors import Unsupported

from .chat_answers import chat_body, read_chat, read_chat_events, usage_of
from .http import DEFAULT_RETRY_S, DEFAULT_TIMEOUT_S, Connection, Remote

DEFAULT_OPEN = 64

_FOREIGN = (
    "min_tokens",
    "stop_token_ids",
    "stop_regex",
    "top_k",
    "min_p",
    "repetition_penalty",
    "ignore_eos",
    "regex",
)


class OpenAICompatible(Remote):
    """Answers calls by requests to `url` (as far as `/v1`) for `model`; connections are kept."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_S,
        retry_seconds: float = DEFAULT_RETRY_S,
        max_open: int = DEFAULT_OPEN,
    ) -> None:
        self._model = model
        super().__init__(
            Connection(url, api_key=api_key, timeout_s=timeout_seconds, retry_s=retry_seconds), max_open=max_open
        )

    async def generate(self, prompt: Prompt, wish: Wish, put: Callable[[str], None] | None) -> Answer:
        """Continue plain text by `/completions`, a chat by `/chat/completions`."""
        for name in _FOREIGN:
            if getattr(wish, name) not in (None, ()):
                raise Unsupported(f"OpenAI's API has no {name}. Leave it out, or use an axil server.", field=name)
        if prompt.role is None:
            return await self._complete(prompt.text, wish, put)
        if prompt.role != "assistant" or prompt.text:
            raise Unsupported(
                "OpenAI's API begins each assistant turn anew: a call must be the first thing in its turn, and the last"
                " one that has text before it can't be gone on with. Use an axil server for that."
            )
        body = {**chat_body(prompt, wish), "model": self._model}
        del body["add_generation_prompt"]
        if put is None:
            return read_chat(await self._connection.post("/chat/completions", body))
        return await read_chat_events(self._connection, "/chat/completions", body, put)

    async def score(self, prompt: Prompt, choices: Sequence[str]) -> Scores:
        """Refuse: the API doesn't tell a prompt's logprobs."""
        raise Unsupported("OpenAI's API doesn't tell a prompt's logprobs, which select needs. Use an axil server.")

    async def score_alone(self, token_ids: Sequence[Sequence[int]]) -> Scores:
        """Refuse, as `score`."""
        return await self.score(Prompt(text=""), ())

    async def _complete(self, text: str, wish: Wish, put: Callable[[str], None] | None) -> Answer:
        if wish.json_schema is not None:
            raise Unsupported("OpenAI's completions take no json_schema; a chat does.", field="json_schema")
        body = chat_body(Prompt(text="", role="assistant"), wish)
        for name in ("messages", "add_generation_prompt", "max_completion_tokens", "logprobs", "top_logprobs"):
            body.pop(name, None)
        body |= {"model": self._model, "prompt": text, "max_tokens": wish.max_tokens}
        if wish.num_top_logprobs is not None:
            body["logprobs"] = wish.num_top_logprobs
        if put is None:
            return _read(await self._connection.post("/completions", body))
        whole: dict[int, dict[str, Any]] = {}
        usage: dict[str, Any] | None = None
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        async for event in self._connection.events("/completions", body):
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                _add(whole.setdefault(choice["index"], {"index": choice["index"], "text": ""}), choice)
                if choice["index"] == 0 and choice["text"]:
                    put(choice["text"])
        return _read({"choices": list(whole.values()), "usage": usage})


def _add(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    whole["text"] += piece["text"]
    whole["finish_reason"] = piece.get("finish_reason")
    for name, values in (piece.get("logprobs") or {}).items():
        kept = whole.setdefault("logprobs", {})
        kept[name] = (kept.get(name) or []) + (values or [])


def _read(found: dict[str, Any]) -> Answer:
    choices = sorted(found["choices"], key=lambda choice: choice["index"])
    return Answer(
        texts=tuple(choice["text"] for choice in choices),
        finish_reasons=tuple(choice.get("finish_reason") or "" for choice in choices),
        usage=usage_of(found.get("usage")),
        logprobs=tuple(_logprobs(choice.get("logprobs")) for choice in choices),
    )


def _logprobs(told: dict[str, Any] | None) -> tuple[TokenLogprob, ...]:
    if not told or not told.get("tokens"):
        return ()
    tops = told.get("top_logprobs") or [{}] * len(told["tokens"])
    return tuple(
        TokenLogprob(text, logprob, tuple((top or {}).items()))
        for text, logprob, top in zip(told["tokens"], told["token_logprobs"], tops, strict=True)
    )
