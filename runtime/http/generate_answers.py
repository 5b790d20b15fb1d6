"""What `/generate` answers, in SGLang's form: bodies, and the frames of a stream. Knows no request's fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from runtime.generation import Delta, End, Generation, TokenLogprob
from runtime.text.tokenizer import Tokenizer

from .events import event
from .explained import Explained


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What the answer is to contain, for the whole batch."""

    with_text_in_logprobs: bool
    with_prompt_ids: bool
    is_batch: bool
    is_incremental: bool
    session_id: str | None
    explained: Explained | None = None


class _Written:
    """A list that grows, kept as its JSON: a cumulative stream repeats it in every frame, and writes no value twice."""

    __slots__ = ("_json", "num_values")

    def __init__(self) -> None:
        self._json = bytearray()
        self.num_values = 0

    def add(self, value: object) -> None:
        if self.num_values:
            self._json += b","
        self._json += orjson.dumps(value)
        self.num_values += 1

    def json(self) -> orjson.Fragment:
        return orjson.Fragment(b"[" + self._json + b"]")


@dataclass(slots=True)
class _Logprobs:
    """Those of the prompt's tokens, or of the answer's: of each token itself, the likeliest, and the chosen ids."""

    tokens: _Written = field(default_factory=_Written)
    top: _Written = field(default_factory=_Written)
    chosen: _Written = field(default_factory=_Written)


@dataclass(slots=True)
class Answer:
    """One generation's answer so far, or, of an incremental stream, what is new since the last frame."""

    generation: Generation
    wish: AnswerForm
    tokenizer: Tokenizer
    interval_tokens: int = 1
    num_told: int = 0
    text: str = ""
    end: End | None = None
    logprobs: _Logprobs = field(default_factory=_Logprobs)
    prompt_logprobs: _Logprobs = field(default_factory=_Logprobs)

    def add(self, delta: Delta) -> None:
        """Take what is new."""
        self.text += delta.text
        self.end = delta.end
        for token in delta.logprobs:
            self._write(self.logprobs, token)
        for token in delta.prompt_logprobs:
            self._write(self.prompt_logprobs, token)

    @property
    def is_due(self) -> bool:
        """Whether a frame is to be sent: the first, the last, and one for every interval of tokens."""
        num_new = len(self.generation.output_ids) - self.num_told
        return self.end is not None or not self.num_told or num_new >= self.interval_tokens

    def told(self) -> dict[str, object]:
        """The body of a stream's next frame; of an incremental one what is in it is gone afterwards."""
        body = self.body()
        num_told, self.num_told = self.num_told, len(self.generation.output_ids)
        if self.wish.is_incremental:
            body["output_ids"] = self.generation.output_ids[num_told:]
            self.text = ""
            self.logprobs, self.prompt_logprobs = _Logprobs(), _Logprobs()
        return body

    def body(self) -> dict[str, object]:
        """The answer in SGLang's form."""
        body: dict[str, object] = {
            "text": self.text,
            "output_ids": self.generation.output_ids,
            "meta_info": self._meta_info(),
        }
        if self.wish.with_prompt_ids:
            body["prompt_token_ids"] = list(self.generation.prompt.token_ids)
        return body

    def _meta_info(self) -> dict[str, object]:
        generation = self.generation
        num_tokens = len(generation.output_ids)
        meta: dict[str, object] = {
            "id": generation.prompt.request_id,
            "finish_reason": None if self.end is None else _finish_reason(self.end, num_tokens),
            "prompt_tokens": len(generation.prompt.token_ids),
            "cached_tokens": generation.cached_tokens,
            "cached_tokens_details": {"device": generation.cached_tokens, "host": 0},
            "completion_tokens": num_tokens,
            "reasoning_tokens": 0,  # thoughts are told apart in chats only
            "weight_version": "default",
            "num_retractions": generation.num_retractions,
        }
        if self.end is not None:
            meta["e2e_latency"] = generation.times.elapsed_s
            if generation.reuse is not None:
                meta["queue_time"] = generation.reuse.queue_s
        if self.wish.explained is not None and generation.reuse is not None:
            meta["cache"] = self.wish.explained.body(generation)
        if self.wish.session_id is not None:
            meta["session_id"] = self.wish.session_id
        sampling = generation.prompt.sampling
        if sampling.num_top_logprobs is not None:
            meta["output_token_logprobs_length"] = self.logprobs.tokens.num_values
            for kind, logprobs in (("input", self.prompt_logprobs), ("output", self.logprobs)):
                meta[f"{kind}_token_logprobs"] = logprobs.tokens.json()
                if sampling.num_top_logprobs > 0:
                    meta[f"{kind}_top_logprobs"] = logprobs.top.json()
                if sampling.logprob_ids:
                    meta[f"{kind}_token_ids_logprobs"] = logprobs.chosen.json()
        return meta

    def _write(self, logprobs: _Logprobs, token: TokenLogprob) -> None:
        sampling = self.generation.prompt.sampling
        logprobs.tokens.add(self._triple(token.logprob, token.token_id))
        if sampling.num_top_logprobs:
            logprobs.top.add(self._triples(token, token.top))
        if sampling.logprob_ids:
            logprobs.chosen.add(self._triples(token, token.chosen))

    def _triples(self, token: TokenLogprob, pairs: list[tuple[int, float]]) -> list[list[object]] | None:
        if token.logprob is None:
            return None
        return [self._triple(logprob, token_id) for token_id, logprob in pairs]

    def _triple(self, logprob: float | None, token_id: int) -> list[object]:
        return [logprob, token_id, self.tokenizer.token_text(token_id) if self.wish.with_text_in_logprobs else None]


class AnswerEvents:
    """The frames of a stream."""

    def __init__(self, answers: Sequence[Answer], wish: AnswerForm) -> None:
        self._answers = answers
        self._wish = wish

    def of(self, i: int, delta: Delta) -> Sequence[bytes]:
        """The frame of a delta, unless it is not due yet."""
        answer = self._answers[i]
        answer.add(delta)
        if not answer.is_due:
            return ()
        body = answer.told()
        return (event({"index": i, **body} if self._wish.is_batch else body),)

    def last(self) -> Sequence[bytes]:
        """Nothing: each answer's last frame has its figures."""
        return ()


def _finish_reason(end: End, num_tokens: int) -> dict[str, object]:
    match end.reason:
        case "stop":
            return {"type": "stop", "matched": end.matched}
        case "length":
            return {"type": "length", "length": num_tokens}
        case "cancelled":
            message = end.message or "the request was aborted"
            return {"type": "abort", "message": message, "status_code": None, "err_type": None}
