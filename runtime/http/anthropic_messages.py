"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API for chats, over the model's chat template."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from aiohttp import web
from msgspec.structs import replace

from runtime.generation import End, Generation
from runtime.text.grammar import json_grammar
from runtime.text.pieces import Call, Piece, Text, Thought
from wire.errors import Refused
from wire.sampling import MAX_STOP_STRINGS, RANGES, Grammar, SamplingParams

from .anthropic import CHAT_FIELDS, MESSAGES_PATH, anthropic_error_frame, cache_ttl_s, read_chat
from .chat_prompt import rendered
from .chat_turn import Answers, prepared, prompts_of
from .errors import json_response, spelled
from .fields import Fields, read_fields
from .front import FRONT
from .openai import check_model, new_call_id
from .place import PLACE_FIELDS, kept_for, read_place
from .route import Route
from .sampling import SAMPLING_FIELDS, OwnNames, read_sampling
from .schema import boolean, list_of, mapping, ranged, record, shown, string
from .sse import StreamForm, named_frame, respond

_BODY = record(
    {
        **CHAT_FIELDS,
        **PLACE_FIELDS,
        **{name: schema for name, schema in SAMPLING_FIELDS.items() if name != "n"},
        "max_tokens": ranged(RANGES["max_new_tokens"], "integer", text="Tokens in the answer, at most."),
        "stop_sequences": list_of(string(), most=MAX_STOP_STRINGS, text="Texts that end the answer, and are cut off."),
        "stream": boolean(text="Send the answer as server-sent events."),
        "metadata": record({"user_id": string()}, text="Taken and not needed."),
        "output_config": record(
            {"effort": string(), "format": mapping(text="type json_schema, and a schema that the answer must suit.")}
        ),
    },
    required=("messages", "max_tokens"),
)
_COUNT_BODY = record(CHAT_FIELDS, required=("messages",))

_FORM = StreamForm(frame=named_frame, error=anthropic_error_frame, end=b"")
_NAMES = {"max_new_tokens": "max_tokens", "stop": "stop_sequences"}


async def messages(request: web.Request) -> web.StreamResponse:
    """Give the assistant's next turn, in Anthropic's shape."""
    front = request.app[FRONT]
    times = front.generator.arrival()
    fields = await read_fields(request)
    check_model(front, fields)
    sampling = _read_sampling(fields)
    place = kept_for(read_place(fields), cache_ttl_s(fields))
    chat = read_chat(fields)
    fields.fields("metadata").string("user_id")
    is_stream = fields.boolean("stream", False)
    front.warn_unknown(fields)
    turn = await prepared(front, chat, sampling)
    request_id = f"msg_{uuid.uuid4().hex}"
    with spelled(_NAMES):
        prompts = prompts_of(turn, place, request_id=request_id)
        async with front.generator.start_all(prompts, times) as generations:
            answer = _Answer(Answers(turn, generations), is_marked=cache_ttl_s(fields) > 0)
            if is_stream:
                return await respond(request, _events(answer), request_id=request_id, form=_FORM)
            blocks = [block async for block in _blocks(answer)]
    return json_response(answer.message(blocks), headers={"X-Request-Id": request_id})


async def count_tokens(request: web.Request) -> web.Response:
    """Tell how many tokens a prompt would have."""
    front = request.app[FRONT]
    fields = await read_fields(request)
    check_model(front, fields)
    chat = read_chat(fields)
    front.warn_unknown(fields)
    prompt = await rendered(front, chat)
    return json_response({"input_tokens": len(prompt.token_ids)})


@dataclass(slots=True)
class _Answer:
    """The one answer; `is_marked` says whether the request asked for its prompt to be kept."""

    answers: Answers
    is_marked: bool
    end: End | None = field(default=None)

    @property
    def generation(self) -> Generation:
        return self.answers.generations[0]

    async def pieces(self) -> AsyncGenerator[Piece | None, None]:
        """The pieces; None when nothing but tokens has come."""
        async for _, step in self.answers.steps():
            self.end = step.end
            if not step.pieces:
                yield None
            for piece in step.pieces:
                yield piece

    def message(self, blocks: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": self.generation.prompt.request_id,
            "type": "message",
            "role": "assistant",
            "model": self.answers.turn.front.model_name,
            "content": blocks,
            **self.stop(),
            "usage": self.usage(),
        }

    def stop(self) -> dict[str, object]:
        """Why the answer ended, or that it has not."""
        if self.end is None:
            return {"stop_reason": None, "stop_sequence": None}
        matched = self.end.matched
        if self.end.reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if isinstance(matched, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": matched}
        return {"stop_reason": "tool_use" if self.answers.counts[0].calls else "end_turn", "stop_sequence": None}

    def usage(self) -> dict[str, object]:
        """Tokens; those of the prompt are told as read from the cache, as written to it on request, or as others."""
        num_prompt, num_cached = len(self.generation.prompt.token_ids), self.generation.cached_tokens
        num_written = num_prompt - num_cached if self.is_marked else 0
        return {
            "input_tokens": num_prompt - num_cached - num_written,
            "cache_creation_input_tokens": num_written,
            "cache_read_input_tokens": num_cached,
            "output_tokens": len(self.generation.output_ids),
        }


async def _blocks(answer: _Answer) -> AsyncGenerator[dict[str, object], None]:
    """The content of the whole message."""
    kind: type[Piece] | None = None
    texts: list[str] = []
    async for piece in answer.pieces():
        if piece is None:
            continue
        if kind is not None and (kind is not type(piece)):
            yield _whole_block(kind, texts)
            kind = None
        if isinstance(piece, Call):
            yield _tool_use(answer, piece) | {"input": json.loads(piece.arguments)}
            continue
        if kind is None:
            kind, texts = type(piece), []
        texts.append(piece.text)
    if kind is not None:
        yield _whole_block(kind, texts)


def _whole_block(kind: type[Piece], texts: list[str]) -> dict[str, object]:
    name = "text" if kind is Text else "thinking"
    return _empty_block(kind) | {name: "".join(texts)}


async def _events(answer: _Answer) -> AsyncGenerator[dict[str, object], None]:
    """The events of a streamed message."""
    is_begun, index, kind = False, -1, None
    async for piece in answer.pieces():
        if not is_begun:
            is_begun = True
            yield {
                "type": "message_start",
                "message": answer.message([]) | {"stop_reason": None, "stop_sequence": None},
            }
        if piece is None:
            continue
        if kind is not type(piece) or isinstance(piece, Call):
            if kind is not None:
                yield {"type": "content_block_stop", "index": index}
            index, kind = index + 1, type(piece)
            block = _tool_use(answer, piece) if isinstance(piece, Call) else _empty_block(kind)
            yield {"type": "content_block_start", "index": index, "content_block": block}
        yield {"type": "content_block_delta", "index": index, "delta": _delta(piece)}
    if kind is not None:
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": answer.stop(), "usage": answer.usage()}
    yield {"type": "message_stop"}


def _empty_block(kind: type[Piece]) -> dict[str, object]:
    if kind is Thought:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _tool_use(answer: _Answer, call: Call) -> dict[str, object]:
    return {"type": "tool_use", "id": new_call_id(answer.answers.turn.front), "name": call.name, "input": {}}


def _delta(piece: Piece) -> dict[str, object]:
    match piece:
        case Text():
            return {"type": "text_delta", "text": piece.text}
        case Thought():
            return {"type": "thinking_delta", "thinking": piece.text}
        case Call():
            return {"type": "input_json_delta", "partial_json": piece.arguments}


def _read_sampling(fields: Fields) -> SamplingParams:
    names = OwnNames(
        max_new_tokens=fields.integer("max_tokens"),
        min_new_tokens=None,
        seed=None,
        num_top_logprobs=None,
        grammar=_read_format(fields),
    )
    sampling = read_sampling(fields, names)
    return replace(sampling, stop=(*sampling.stop, *fields.strings("stop_sequences")))


def _read_format(fields: Fields) -> Grammar | None:
    config = fields.fields("output_config")
    config.string("effort")
    form, field = config.mapping("format"), config.name("format")
    if not form:
        return None
    if form.get("type") != "json_schema":
        raise Refused(f"{field}.type must be json_schema, got {shown(form.get('type'))}. Change it.", field=field)
    return json_grammar(form.get("schema"), field=f"{field}.schema")


_HELLO: dict[str, object] = {"messages": [{"role": "user", "content": "Hello"}]}

ROUTES = (
    Route(
        method="POST",
        path=MESSAGES_PATH,
        handler=messages,
        is_work=True,
        body=_BODY,
        examples=(_HELLO | {"max_tokens": 32}, _HELLO | {"max_tokens": 32, "stream": True, "system": "Be brief."}),
    ),
    Route(
        method="POST", path=f"{MESSAGES_PATH}/count_tokens", handler=count_tokens, body=_COUNT_BODY, examples=(_HELLO,)
    ),
)
