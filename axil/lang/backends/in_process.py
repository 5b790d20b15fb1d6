"""An `axil.Engine` in the caller's own process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from axil.lang.backend import Answer, Prompt, Scored, Scores, TokenLogprob, Usage, Wish
from axil.lang.choices import departure
from axil.lang.home import Home
from axil.lang.turns import Turns
from runtime.completion import Completion
from runtime.engine import Engine
from runtime.forced_forms import json_schema, regex
from wire.sampling import Grammar, SamplingParams

DEFAULT_OPEN = 256


class InProcess:
    """Answers calls by an engine, which stays open when this goes. Its token ids are those of the model's template."""

    def __init__(self, engine: Engine, *, max_open: int = DEFAULT_OPEN) -> None:
        self.home = Home()
        self.turns = Turns(max_open)
        self._engine = engine

    async def generate(self, prompt: Prompt, wish: Wish, put: Callable[[str], None] | None) -> Answer:
        """Continue a prompt with the engine's sampling."""
        token_ids = await self._token_ids(prompt, "")
        sampling = _sampling(wish)
        if put is None or wish.n > 1:
            completions = await self._engine.agenerate(token_ids, sampling, n=wish.n)
            if put is not None:
                put(completions[0].text)
            return _answer(completions)
        async for chunk in self._engine.stream(token_ids, sampling):
            if chunk.text:
                put(chunk.text)
            if chunk.completion is not None:
                return _answer([chunk.completion])
        raise AssertionError("an answer ends with a completion")

    async def score(self, prompt: Prompt, choices: Sequence[str]) -> Scores:
        """Give the logprobs of each choice's tokens behind the prompt."""
        before = await self._token_ids(prompt, "")
        whole = [await self._token_ids(prompt, choice) for choice in choices]
        return await self._scored(whole, departure(before, whole))

    async def score_alone(self, token_ids: Sequence[Sequence[int]]) -> Scores:
        """Give the logprobs of each list's tokens with nothing before them."""
        return await self._scored([list(each) for each in token_ids], 0)

    async def _token_ids(self, prompt: Prompt, more: str) -> list[int]:
        text = prompt.text + more
        if prompt.role is None:
            return await self._engine.aencode(text)
        messages: list[Mapping[str, object]] = [
            {"role": message.role, "content": message.content} for message in prompt.messages
        ]
        if prompt.role == "assistant" and not text:
            return await self._engine.aencode(messages)
        return await self._engine.aencode([*messages, {"role": prompt.role, "content": text}], continue_final=True)

    async def _scored(self, whole: Sequence[list[int]], start: int) -> Scores:
        sampling = SamplingParams(max_new_tokens=0, temperature=0.0, num_top_logprobs=0, prompt_logprobs_from=start)
        completions = await self._engine.agenerate(list(whole), sampling)
        choices = []
        for ids, completion in zip(whole, completions, strict=True):
            told = completion.prompt_logprobs or ()
            logprobs = [token.logprob or 0.0 for token in told]
            # The very first token has nothing before it.
            missing = len(ids) - start - len(logprobs)
            choices.append(Scored(token_ids=tuple(ids[start:]), logprobs=(*[0.0] * missing, *logprobs)))
        return Scores(choices=tuple(choices), usage=_usage(completions))


def _sampling(wish: Wish) -> SamplingParams:
    default = SamplingParams()

    def given(value: float | None, otherwise: float) -> float:
        return otherwise if value is None else value

    return SamplingParams(
        max_new_tokens=wish.max_tokens,
        min_new_tokens=wish.min_tokens or 0,
        stop=wish.stop,
        stop_token_ids=wish.stop_token_ids,
        stop_regex=wish.stop_regex,
        temperature=given(wish.temperature, default.temperature),
        top_p=given(wish.top_p, default.top_p),
        top_k=None if wish.top_k in (None, -1) else wish.top_k,
        min_p=given(wish.min_p, default.min_p),
        frequency_penalty=given(wish.frequency_penalty, default.frequency_penalty),
        presence_penalty=given(wish.presence_penalty, default.presence_penalty),
        repetition_penalty=given(wish.repetition_penalty, default.repetition_penalty),
        logit_bias=wish.logit_bias,
        seed=wish.seed,
        ignore_eos=bool(wish.ignore_eos),
        num_top_logprobs=wish.num_top_logprobs,
        grammar=_grammar(wish),
    )


def _grammar(wish: Wish) -> Grammar | None:
    if wish.forced_regex is not None:
        return regex(wish.forced_regex)
    if wish.json_schema is not None:
        return json_schema(wish.json_schema)
    return None


def _answer(completions: Sequence[Completion]) -> Answer:
    return Answer(
        texts=tuple(completion.text for completion in completions),
        finish_reasons=tuple(completion.finish_reason for completion in completions),
        usage=Usage(
            prompt_tokens=completions[0].prompt_tokens,
            cached_tokens=completions[0].cached_tokens,
            completion_tokens=sum(completion.completion_tokens for completion in completions),
        ),
        logprobs=tuple(_logprobs(completion) for completion in completions),
    )


def _logprobs(completion: Completion) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(token.text, token.logprob or 0.0, tuple(token.top), token.token_id)
        for token in completion.logprobs or ()
    )


def _usage(completions: Sequence[Completion]) -> Usage:
    return Usage(
        prompt_tokens=sum(completion.prompt_tokens for completion in completions),
        cached_tokens=sum(completion.cached_tokens for completion in completions),
        completion_tokens=sum(completion.completion_tokens for completion in completions),
    )
