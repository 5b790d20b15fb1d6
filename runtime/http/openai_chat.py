"""`/v1/chat/completions`: OpenAI's API for chats, over the model's chat template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from runtime.generation import Delta, TokenLogprob
from runtime.text.pieces import Arguments, Call, Piece, Text, Thought
from runtime.text.tokenizer import Tokenizer
from wire.errors import Refused
from wire.sampling import RANGES, SamplingParams

from .chat_prompt import CHAT_PROMPT_FIELDS, read_chat
from .chat_turn import Answers, Step, prepared, prompts_of
from .errors import json_response, spelled
from .events import TextEvent, event
from .explained import explain
from .fields import Fields
from .front import FRONT
from .live import stream
from .normaliser import tell
from .openai import OPENAI_FIELDS, Answering, begin, finish, new_call_id, read_openai_sampling
from .place import OPENAI_PLACE_FIELDS, read_openai_place
from .route import Route
from .sampling import read_num_samples
from .schema import boolean, ranged, record, unsupported

CHAT_BODY = record(
    {
        **OPENAI_FIELDS,
        **OPENAI_PLACE_FIELDS,
        **CHAT_PROMPT_FIELDS,
        "max_tokens": ranged(RANGES["max_new_tokens"], "integer", text="Default: the rest of the context."),
        "max_completion_tokens": ranged(RANGES["max_new_tokens"], "integer", text="The newer name of max_tokens."),
        "logprobs": boolean(text="Tell the answer's logprobs."),
        "top_logprobs": ranged(RANGES["num_top_logprobs"], "integer", text="And those of the n most likely tokens."),
        "separate_reasoning": boolean(text="Tell thoughts apart, as reasoning_content. Default true."),
        **unsupported(
            {
                "functions": None,
                "modalities": ["text"],
                "audio": None,
                "web_search_options": None,
                "input_ids": None,
            },
            {
                "functions": "Send tools.",
                "input_ids": "Send a chat's text as messages; token ids as input_ids to /generate, "
                "or as prompt to /v1/completions.",
            },
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
    place = read_openai_place(fields)
    chat = await read_chat(front, fields)
    tell(request, chat.changes)
    with_thoughts = fields.boolean("separate_reasoning", True)
    front.warn_unknown(fields)
    turn = await prepared(front, chat, sampling, with_thoughts=with_thoughts)
    prompts = prompts_of(turn, place, request_id=answering.id, num_samples=num_samples)
    names = _NAMES if fields.raw("max_completion_tokens") is None else _NAMES | _NEW_NAMES
    with spelled(names):
        async with front.generator.start_all(prompts, times) as generations:
            answers = Answers(turn, generations, is_streamed=answering.is_stream)
            explained = explain(request, generations) if answering.is_explained else None
            if answering.is_stream:
                return await stream(request, generations, _Events(answering, answers), request_id=answering.id)
            body = await _whole(answering, answers)
            if explained is not None:
                body["cache"] = await explained.bodies()
    return json_response(body, headers={"X-Request-Id": answering.id})


@dataclass(slots=True)
class _Message:
    """One answer so far."""

    text: list[str] = field(default_factory=list)
    thought: list[str] = field(default_factory=list)
    calls: list[dict[str, object]] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    ending: dict[str, object] = field(default_factory=dict)

    def add(self, step: Step, answers: Answers, i: int) -> None:
        self.logprobs += step.logprobs
        self.ending = _finish(step, answers, i)
        for piece in step.pieces:
            match piece:
                case Text():
                    self.text.append(piece.text)
                case Thought():
                    self.thought.append(piece.text)
                case Call():
                    self.calls.append(_call(piece, answers))

    def body(self) -> dict[str, object]:
        text = "".join(self.text)
        body: dict[str, object] = {"role": "assistant", "content": None if self.calls and not text else text}
        if self.thought:
            body["reasoning_content"] = "".join(self.thought)
        if self.calls:
            body["tool_calls"] = self.calls
        return body


async def _whole(answering: Answering, answers: Answers) -> dict[str, object]:
    messages = [_Message() for _ in answers.generations]
    async for i, step in answers.steps():
        messages[i].add(step, answers, i)
    tokenizer = answers.turn.front.generator.tokenizer
    with_logprobs = answers.turn.sampling.num_top_logprobs is not None
    choices: list[dict[str, object]] = [
        {
            "index": i,
            "message": message.body(),
            "logprobs": _logprobs(message.logprobs, tokenizer) if with_logprobs else None,
            **message.ending,
        }
        for i, message in enumerate(messages)
    ]
    return {**answering.whole(choices, answers.generations, answers.num_thought_tokens), "object": "chat.completion"}


class _Events:
    """The chunks of a stream."""

    def __init__(self, answering: Answering, answers: Answers) -> None:
        self._answering = answering
        self._answers = answers
        self._tokenizer = answers.turn.front.generator.tokenizer
        self._with_logprobs = answers.turn.sampling.num_top_logprobs is not None
        self._begun: set[int] = set()
        self._num_calls = [0 for _ in answers.generations]
        with_more = answering.with_usage_in_each or self._with_logprobs
        self._texts = [] if with_more else [self._text_event(i) for i in range(len(answers.generations))]

    def of(self, i: int, delta: Delta) -> Sequence[bytes]:
        """The chunks of a delta that has something to tell."""
        step = self._answers.step(i, delta)
        if self._texts and i in self._begun and step.end is None:
            match step.pieces:
                case []:
                    return ()
                case [Text(text)]:
                    return (self._texts[i].of(text),)
        return [event(body) for body in self._chunks(i, step)]

    def last(self) -> Sequence[bytes]:
        """The usage, for those who asked for it."""
        return self._answering.last_events(self._answers.generations, self._answers.num_thought_tokens)

    def _chunks(self, i: int, step: Step) -> Iterator[dict[str, object]]:
        if i not in self._begun:
            self._begun.add(i)
            yield self._chunk(i, {"role": "assistant", "content": ""})
        logprobs = _logprobs(step.logprobs, self._tokenizer) if self._with_logprobs and step.logprobs else None
        for delta in _deltas(step.pieces, self._answers, self._num_calls[i]):
            yield self._chunk(i, delta, logprobs=logprobs)
            logprobs = None
        if logprobs is not None:
            yield self._chunk(i, {"content": ""}, logprobs=logprobs)
        self._num_calls[i] = self._answers.counts[i].calls
        if step.end is not None:
            yield self._chunk(i, {}, **_finish(step, self._answers, i))

    def _chunk(self, i: int, delta: dict[str, object], **more: object) -> dict[str, object]:
        answers = self._answers
        return self._answering.chunk(
            [_choice(i, delta, **more)], [answers.generations[i]], answers.counts[i].thought_tokens
        )

    def _text_event(self, i: int) -> TextEvent:
        return self._answering.text_event(lambda text: _choice(i, {"content": text}))


def _choice(i: int, delta: dict[str, object], **more: object) -> dict[str, object]:
    return {"index": i, "delta": delta, "logprobs": None, "finish_reason": None, **more}


def _deltas(pieces: Sequence[Piece], answers: Answers, num_calls: int) -> list[dict[str, object]]:
    deltas: list[dict[str, object]] = []
    for piece in pieces:
        match piece:
            case Text():
                deltas.append({"content": piece.text})
            case Thought():
                deltas.append({"reasoning_content": piece.text})
            case Call():
                deltas.append({"tool_calls": [{"index": num_calls, **_call(piece, answers)}]})
                num_calls += 1
            case Arguments():
                deltas.append({"tool_calls": [{"index": num_calls - 1, "function": {"arguments": piece.text}}]})
    return deltas


def _call(call: Call, answers: Answers) -> dict[str, object]:
    return {
        "id": new_call_id(answers.turn.front),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _finish(step: Step, answers: Answers, i: int) -> dict[str, object]:
    ending = finish(step.end)
    if ending["finish_reason"] == "stop" and answers.counts[i].calls:
        return ending | {"finish_reason": "tool_calls"}
    return ending


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
    return {"content": logprob_entries(tokens, tokenizer), "refusal": None}


def logprob_entries(tokens: Sequence[TokenLogprob], tokenizer: Tokenizer) -> list[dict[str, object]]:
    """Tokens with their logprobs, their bytes, and the likeliest in their place."""

    def entry(token_id: int, logprob: float | None) -> dict[str, object]:
        value = tokenizer.token_bytes(token_id)
        return {"token": value.decode("utf-8", errors="replace"), "logprob": logprob, "bytes": list(value)}

    return [
        entry(token.token_id, token.logprob) | {"top_logprobs": [entry(*pair) for pair in token.top]}
        for token in tokens
    ]


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
