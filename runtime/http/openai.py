"""What the two OpenAI routes have in common: the model's name, usage, finish reasons, ids."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from runtime.generation import End, Generation
from wire.errors import Cancelled, Refused, UnknownModel
from wire.sampling import RANGES, SamplingParams

from .events import TextEvent, event
from .explained import EXPLAIN_FIELD, is_asked
from .fields import Fields, read_fields
from .front import FRONT, Front
from .sampling import CACHE_FIELDS, SAMPLING_FIELDS, OwnNames, checked_rid, read_sampling
from .schema import Schema, anything, boolean, ranged, record, shown, string
from .structured import FORM_FIELDS, RESPONSE_FORMAT, read_response_format

_SGLANG_DEFAULT = "default"
"""How SGLang's clients name whichever model is served."""

_NOT_NEEDED = ("user", "safety_identifier", "metadata", "store", "service_tier", "verbosity", "prediction")

OPENAI_FIELDS: dict[str, Schema] = {
    **SAMPLING_FIELDS,
    **CACHE_FIELDS,
    **FORM_FIELDS,
    **RESPONSE_FORMAT,
    **EXPLAIN_FIELD,
    "model": string(text="This server's model, or absent."),
    "min_tokens": ranged(RANGES["min_new_tokens"], "integer", text="No end before so many tokens."),
    "seed": ranged(RANGES["seed"], "integer", text="Makes a sampled answer repeatable."),
    "rid": string(text="The request's id, for /abort_request."),
    "stream": boolean(text="Send the answer as server-sent events."),
    "stream_options": record({"include_usage": boolean(), "continuous_usage_stats": boolean()}),
    **{name: anything(text="Taken and not needed: the answer is the same.") for name in _NOT_NEEDED},
}
"""The fields that both OpenAI routes have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """What every chunk of an answer repeats, and how usage is to be sent in a stream."""

    id: str
    kind: str
    created: int
    model: str
    is_stream: bool
    with_usage: bool
    with_usage_in_each: bool
    is_explained: bool

    def chunk(
        self, choices: list[dict[str, object]], generations: Sequence[Generation], num_thought: int = 0
    ) -> dict[str, object]:
        """One frame of a stream."""
        body = self._head(choices)
        if self.with_usage:
            body["usage"] = usage(generations, num_thought) if self.with_usage_in_each else None
        return body

    def text_event(self, make_choice: Callable[[str], dict[str, object]]) -> TextEvent:
        """Frames with one choice that differ in its text only; not for those who want usage in each."""
        return TextEvent(lambda text: self.chunk([make_choice(text)], []))

    def usage_chunk(self, generations: Sequence[Generation], num_thought: int = 0) -> dict[str, object]:
        """The frame after the last choice, for those who asked for it."""
        return {**self._head([]), "usage": usage(generations, num_thought)}

    def last_events(self, generations: Sequence[Generation], num_thought: int = 0) -> Sequence[bytes]:
        """The frame after the last choice, for those who asked for usage."""
        return (event(self.usage_chunk(generations, num_thought)),) if self.with_usage else ()

    def whole(
        self, choices: list[dict[str, object]], generations: Sequence[Generation], num_thought: int = 0
    ) -> dict[str, object]:
        """The answer that is not streamed."""
        return {**self._head(choices), "usage": usage(generations, num_thought)}

    def _head(self, choices: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def _read_answering(request: web.Request, front: Front, fields: Fields, *, prefix: str, kind: str) -> Answering:
    """Read `stream`, `stream_options`, `explain_cache` and `rid`; a stream's chunks have the object `kind`.

    Raises:
        Refused: a field has the wrong type.
    """
    rid = fields.string("rid")
    options = fields.fields("stream_options")
    with_usage = options.boolean("include_usage", False)
    with_usage_in_each = options.boolean("continuous_usage_stats", False)
    front.warn_unknown(options)
    for name in _NOT_NEEDED:
        fields.raw(name)
    return Answering(
        id=f"{prefix}-{uuid.uuid4().hex}" if rid is None else checked_rid(rid),
        kind=kind,
        created=int(time.time()),
        model=front.model_name,
        is_stream=fields.boolean("stream", False),
        with_usage=with_usage,
        with_usage_in_each=with_usage_in_each,
        is_explained=is_asked(request, by_field=fields.boolean("explain_cache", False)),
    )


def read_openai_sampling(fields: Fields, *, max_new_tokens: int | None, num_top_logprobs: int | None) -> SamplingParams:
    """The sampling parameters, with OpenAI's names of seed and least length.

    Raises:
        Refused: a field has the wrong type or is not supported.
    """
    names = OwnNames(
        max_new_tokens=max_new_tokens,
        min_new_tokens=fields.integer("min_tokens"),
        seed=fields.integer("seed"),
        num_top_logprobs=num_top_logprobs,
        grammar=read_response_format(fields),
    )
    return read_sampling(fields, names)


async def begin(request: web.Request, *, prefix: str, kind: str) -> tuple[Fields, Answering]:
    """Read the body, and of it what both routes have; a stream's chunks have the object `kind`.

    Raises:
        Refused: the body is no JSON object, or a field is wrong.
        UnknownModel: it names another model than this server's.
    """
    front = request.app[FRONT]
    fields = await read_json(request)
    check_model(front, fields)
    return fields, _read_answering(request, front, fields, prefix=prefix, kind=kind)


async def read_json(request: web.Request) -> Fields:
    """The request's body, which must say that it is JSON: so no web page can post one unasked to a local server.

    Raises:
        Refused: it says something else, or is no JSON object in UTF-8.
    """
    if request.content_type != "application/json":
        raise Refused(
            f"the header Content-Type must be application/json, got {shown(request.content_type)}. Change it."
        )
    return await read_fields(request)


def check_model(front: Front, fields: Fields) -> None:
    """Return when the request names this server's model, or none.

    Raises:
        UnknownModel: it names another.
    """
    name = fields.string("model")
    if name not in (None, _SGLANG_DEFAULT, front.model_name, front.launch.model_path):
        raise UnknownModel(
            f"model {shown(name)} is not served here; this server has {front.model_name!r}. See /v1/models.",
            field="model",
        )


def usage(generations: Sequence[Generation], num_thought: int = 0) -> dict[str, object]:
    """Tokens of a whole answer, `num_thought` of them thoughts; a prompt counts once, however many answers it gets."""
    firsts = [generation for generation in generations if generation.prompt.sample == 0] or generations[:1]
    num_prompt = sum(len(generation.prompt.token_ids) for generation in firsts)
    num_cached = sum(generation.cached_tokens for generation in firsts)
    num_output = sum(len(generation.output_ids) for generation in generations)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": num_cached, "cache_write_tokens": num_prompt - num_cached},
        "completion_tokens_details": {"reasoning_tokens": num_thought},
    }


def new_call_id(front: Front) -> str:
    """An id for a tool call, as long as the model's chat template wants it."""
    length = front.answer_form.call_id_characters
    return f"call_{uuid.uuid4().hex}" if length is None else uuid.uuid4().hex[:length]


def finish(end: End | None) -> dict[str, object]:
    """A choice's `finish_reason`, and at the end what stopped it.

    Raises:
        Cancelled: somebody aborted the request.
    """
    if end is None:
        return {"finish_reason": None}
    if end.reason == "cancelled":
        raise Cancelled(end.message or "the request was aborted.")
    return {"finish_reason": end.reason, "matched_stop": end.matched}
