"""`/v1/responses`: OpenAI's newer API for chats. Nothing is stored: each request brings its whole input."""

from __future__ import annotations

import functools
import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import orjson
from aiohttp import web

from runtime.generation import Delta, End
from runtime.text.grammar import json_grammar
from wire.errors import AxilError, NotFound, Refused
from wire.sampling import RANGES, Grammar, SamplingParams

from .chat_turn import Answers, Step, prepared, prompts_of
from .errors import json_response, spelled
from .events import Ending, named_event
from .explained import explain, is_asked
from .fields import Fields
from .front import FRONT, Front
from .live import stream
from .normaliser import tell
from .openai import check_model, new_call_id, read_json
from .openai_chat import logprob_entries
from .place import OPENAI_PLACE_FIELDS, read_openai_place
from .responses_input import INPUT_FIELDS, read_chat
from .responses_items import Items
from .route import Method, Route
from .sampling import SAMPLING_FIELDS, OwnNames, read_sampling
from .schema import anything, boolean, list_of, mapping, ranged, record, shown, string, unsupported
from .tools import offered

_BODY = record(
    {
        **INPUT_FIELDS,
        **OPENAI_PLACE_FIELDS,
        **{name: schema for name, schema in SAMPLING_FIELDS.items() if name != "n"},
        "model": string(text="This server's model, or absent."),
        "max_output_tokens": ranged(RANGES["max_new_tokens"], "integer", text="Default: the rest of the context."),
        "top_logprobs": ranged(RANGES["num_top_logprobs"], "integer", text="Tell the n most likely tokens."),
        "text": record(
            {
                "format": record({"type": string(), "name": string(), "schema": mapping(), "strict": boolean()}),
                "verbosity": string(),
            },
            text="format.type is text, json_object or json_schema.",
        ),
        "stream": boolean(text="Send events."),
        "stream_options": mapping(),
        "store": boolean(text="Nothing is stored, whatever this says."),
        "include": list_of(string(), text="message.output_text.logprobs tells logprobs; the rest is not needed."),
        "truncation": string(choices=("disabled", "auto"), text="Nothing is ever left out."),
        "metadata": mapping(text="Given back."),
        "client_metadata": mapping(text="Taken and not needed."),
        "user": string(),
        "safety_identifier": string(),
        "service_tier": anything(),
        **unsupported({"previous_response_id": None, "conversation": None, "background": None, "prompt": None}),
    },
    required=("input",),
)

_NAMES = {"max_new_tokens": "max_output_tokens", "logprobs": "top_logprobs", "messages": "input"}
_NOT_NEEDED = ("store", "stream_options", "client_metadata", "user", "safety_identifier", "service_tier", "truncation")


async def responses(request: web.Request) -> web.StreamResponse:
    """Give the answer to a chat as items: messages, thoughts and calls."""
    front = request.app[FRONT]
    times = front.generator.arrival()
    fields = await read_json(request)
    check_model(front, fields)
    sampling = _read_sampling(fields)
    place = read_openai_place(fields)
    chat = await read_chat(front, fields)
    tell(request, chat.changes)
    echo = _read_echo(fields, front)
    is_stream = fields.boolean("stream", False)
    for name in _NOT_NEEDED:
        fields.raw(name)
    front.warn_unknown(fields)
    with spelled(_NAMES):
        turn = await prepared(front, chat, sampling)
        prompts = prompts_of(turn, place, request_id=str(echo["id"]))
        async with front.generator.start_all(prompts, times) as generations:
            answer = _Answer(Answers(turn, generations, is_streamed=is_stream), echo)
            if is_asked(request):
                explain(request, generations)
            headers = {"X-Request-Id": str(echo["id"])}
            if is_stream:
                ending = Ending(good=(), bad=lambda error: (named_event(answer.failed(error)),))
                return await stream(request, generations, answer, request_id=str(echo["id"]), ending=ending)
            async for _, step in answer.answers.steps():
                answer.add(step)
    return json_response(answer.body(), headers=headers)


async def stored_response(request: web.Request) -> web.StreamResponse:
    """Say that no response is stored, whichever is asked for."""
    raise NotFound(
        f"response {shown(request.match_info['response_id'])} is not stored: this server keeps none (store is false in "
        "every answer). Keep what was answered, and send the whole input with each request.",
        field="response_id",
    )


@dataclass(slots=True)
class _Answer:
    """The one answer; `echo` is what the object repeats of the request."""

    answers: Answers
    echo: dict[str, object]
    items: Items = field(init=False)
    end: End | None = None
    is_begun: bool = False
    number: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        front = self.answers.turn.front
        self.items = Items(_new_id, functools.partial(new_call_id, front), self.answers.turn.chat.tools.spaces)

    def of(self, i: int, delta: Delta) -> Sequence[bytes]:
        """The events of a delta."""
        events = self.add(self.answers.step(i, delta))
        if not self.is_begun:
            self.is_begun = True
            begun = {**self.echo, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
            events = [
                {"type": "response.created", "response": begun},
                {"type": "response.in_progress", "response": begun},
                *events,
            ]
        return [named_event(self._numbered(each)) for each in events]

    def last(self) -> Sequence[bytes]:
        """The event that has the whole response."""
        kind = "response.incomplete" if self.end is not None and self.end.reason == "length" else "response.completed"
        return (named_event(self._numbered({"type": kind, "response": self.body()})),)

    def add(self, step: Step) -> list[dict[str, object]]:
        """Add what has come; gives the events that tell of it."""
        logprobs = logprob_entries(step.logprobs, self.answers.turn.front.generator.tokenizer)
        events: list[dict[str, object]] = []
        for piece in step.pieces:
            events += self.items.add(piece, logprobs)
            logprobs = []
        if step.end is not None:
            events += self.items.close(is_whole=step.end.reason == "stop")
            self.end = step.end
        return events

    def failed(self, error: AxilError) -> dict[str, object]:
        """The event that ends a stream with an error."""
        code = error.code if error.status < 500 else "server_error"
        told = {"code": code, "message": error.message}
        return self._numbered(
            {"type": "response.failed", "response": self.body() | {"status": "failed", "error": told}}
        )

    def body(self) -> dict[str, object]:
        """The response as it is now."""
        is_cut = self.end is not None and self.end.reason == "length"
        status = "in_progress" if self.end is None else "incomplete" if is_cut else "completed"
        return {
            **self.echo,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": list(self.items.output),
            "usage": None if self.end is None else self._usage(),
        }

    def _numbered(self, event: dict[str, object]) -> dict[str, object]:
        return {"type": event["type"], "sequence_number": next(self.number), **event}

    def _usage(self) -> dict[str, object]:
        (generation,), (count,) = self.answers.generations, self.answers.counts
        num_prompt, num_output = len(generation.prompt.token_ids), len(generation.output_ids)
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {
                "cached_tokens": generation.cached_tokens,
                "cache_write_tokens": num_prompt - generation.cached_tokens,
            },
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": count.thought_tokens},
            "total_tokens": num_prompt + num_output,
        }


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def _read_sampling(fields: Fields) -> SamplingParams:
    num_top = fields.integer("top_logprobs")
    with_logprobs = "message.output_text.logprobs" in fields.strings("include") or bool(num_top)
    names = OwnNames(
        max_new_tokens=fields.integer("max_output_tokens"),
        min_new_tokens=None,
        seed=None,
        num_top_logprobs=(num_top or 0) if with_logprobs else None,
        grammar=_read_format(fields),
    )
    return read_sampling(fields, names)


def _read_format(fields: Fields) -> Grammar | None:
    text = fields.fields("text")
    text.string("verbosity")
    form = text.fields("format")
    match form.string("type"):
        case None | "text":
            return None
        case "json_object":
            return json_grammar({"type": "object"}, field=form.name("type"))
        case "json_schema":
            return json_grammar(form.mapping("schema"), field=form.name("schema"))
        case kind:
            raise Refused(
                f"{form.name('type')} must be text, json_object or json_schema, got {shown(kind)}. Change it.",
                field=form.name("type"),
            )


def _read_echo(fields: Fields, front: Front) -> dict[str, object]:
    """What a response object repeats of its request.

    Raises:
        Refused: a field is nested so deeply that it can be read, but not written again.
    """
    raw: Callable[[str], object] = fields.raw
    for name in ("metadata", "reasoning", "text", "tool_choice", "tools"):
        try:
            orjson.dumps({"response": {name: raw(name)}})
        except orjson.JSONEncodeError as error:
            raise Refused(
                f"{name} is nested too deeply, got {shown(raw(name))}: the answer repeats it, and holds at most"
                " 250 levels. Send a flatter one.",
                field=name,
            ) from error
    return {
        "id": _new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "model": front.model_name,
        "error": None,
        "background": False,
        "instructions": raw("instructions"),
        "max_output_tokens": raw("max_output_tokens"),
        "metadata": raw("metadata") or {},
        "parallel_tool_calls": fields.boolean("parallel_tool_calls", True),
        "previous_response_id": None,
        "prompt_cache_key": raw("prompt_cache_key"),
        "reasoning": raw("reasoning") or {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0 if raw("temperature") is None else raw("temperature"),
        "text": raw("text") or {"format": {"type": "text"}},
        "tool_choice": raw("tool_choice") or "auto",
        "tools": offered(raw("tools")),
        "top_p": 1.0 if raw("top_p") is None else raw("top_p"),
        "truncation": "disabled",
    }


_STORED: tuple[tuple[Method, str], ...] = (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items"))
ROUTES = (
    Route(
        method="POST",
        path="/v1/responses",
        handler=responses,
        is_work=True,
        body=_BODY,
        examples=(
            {"input": "What is gravity?", "max_output_tokens": 64},
            {
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
                "instructions": "Be brief.",
                "stream": True,
                "max_output_tokens": 32,
            },
        ),
    ),
    *(
        Route(method=method, path=f"/v1/responses/{{response_id}}{path}", handler=stored_response)
        for method, path in _STORED
    ),
)
