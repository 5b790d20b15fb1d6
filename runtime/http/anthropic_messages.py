"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API for chats, over the model's chat template."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiohttp import web
from msgspec.structs import replace

from runtime.generation import Delta, End, Generation
from runtime.text.grammar import json_grammar
from runtime.text.pieces import Arguments, Call, Piece, Text, Thought
from wire.errors import Refused
from wire.sampling import MAX_STOP_STRINGS, RANGES, Grammar, SamplingParams

from .anthropic import CHAT_FIELDS, MESSAGES_PATH, anthropic_error_frame, cache_ttl_s, read_chat
from .chat_prompt import rendered
from .chat_turn import Answers, prepared, prompts_of
from .errors import json_response, spelled
from .events import Ending, TextEvent, named_event
from .explained import Explained, explain, is_asked
from .fields import Fields, read_fields
from .front import FRONT
from .live import stream
from .normaliser import tell
from .openai import check_model, new_call_id
from .place import PLACE_FIELDS, kept_for, read_place
from .route import Route
from .sampling import SAMPLING_FIELDS, OwnNames, read_sampling
from .schema import boolean, list_of, mapping, ranged, record, shown, string

_BODY = record(
    {
        **CHAT_FIELDS,
        **PLACE_FIELDS,
        **{name: schema for name, schema in SAMPLING_FIELDS.items() if name != "n"},
        "max_tokens": ranged(
            RANGES["max_new_tokens"], "integer", text="Tokens in the answer, at most; the context may end it earlier."
        ),
        "stop_sequences": list_of(string(), most=MAX_STOP_STRINGS, text="Texts that end the answer, and are cut off."),
        "stream": boolean(text="Send the answer as server-sent events."),
        "diagnostics": record(
            {"previous_message_id": string(text="The answer before, to be compared with.")},
            text="Say in the answer why no more of the prompt was cached.",
        ),
        "metadata": record({"user_id": string()}, text="Taken and not needed."),
        "output_config": record(
            {"effort": string(), "format": mapping(text="type json_schema, and a schema that the answer must suit.")}
        ),
    },
    required=("messages", "max_tokens"),
)
_COUNT_BODY = record(CHAT_FIELDS, required=("messages",))

_ENDING = Ending(good=(), bad=lambda error: (named_event(anthropic_error_frame(error)),))
_NAMES = {"max_new_tokens": "max_tokens", "stop": "stop_sequences"}


async def messages(request: web.Request) -> web.StreamResponse:
    """Give the assistant's next turn, in Anthropic's shape."""
    front = request.app[FRONT]
    times = front.generator.arrival()
    fields = await read_fields(request)
    check_model(front, fields)
    sampling = _read_sampling(fields)
    place = kept_for(read_place(fields), cache_ttl_s(fields))
    chat = await read_chat(front, fields)
    tell(request, chat.changes)
    fields.fields("metadata").string("user_id")
    is_diagnosed = fields.raw("diagnostics") is not None
    previous_id = fields.fields("diagnostics").string("previous_message_id")
    is_stream = fields.boolean("stream", False)
    front.warn_unknown(fields)
    turn = (await prepared(front, chat, sampling)).cut_to_context()  # agents ask for as much as Anthropic's models give
    request_id = f"msg_{uuid.uuid4().hex}"
    with spelled(_NAMES):
        prompts = prompts_of(turn, place, request_id=request_id)
        async with front.generator.start_all(prompts, times) as generations:
            answers = Answers(turn, generations, is_streamed=is_stream)
            answer = _Answer(answers, is_marked=cache_ttl_s(fields) > 0)
            if is_asked(request, by_field=is_diagnosed):
                explained = explain(request, generations)
                if is_diagnosed:
                    answer.explained, explained.previous_id = explained, previous_id
            if is_stream:
                return await stream(request, generations, _Events(answer), request_id=request_id, ending=_ENDING)
            blocks = await _blocks(answer)
            if answer.explained is not None:
                await answer.explained.complete()
    return json_response(answer.message(blocks), headers={"X-Request-Id": request_id})


async def count_tokens(request: web.Request) -> web.Response:
    """Tell how many tokens a prompt would have."""
    front = request.app[FRONT]
    fields = await read_fields(request)
    check_model(front, fields)
    chat = await read_chat(front, fields)
    tell(request, chat.changes)
    front.warn_unknown(fields)
    prompt = await rendered(front, chat)
    return json_response({"input_tokens": len(prompt.token_ids)})


@dataclass(slots=True)
class _Answer:
    """The one answer; `is_marked` says whether the request asked for its prompt to be kept."""

    answers: Answers
    is_marked: bool
    end: End | None = field(default=None)
    explained: Explained | None = None

    @property
    def generation(self) -> Generation:
        return self.answers.generations[0]

    def message(self, blocks: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": self.generation.prompt.request_id,
            "type": "message",
            "role": "assistant",
            "model": self.answers.turn.front.model_name,
            "content": blocks,
            **self.stop(),
            "usage": self.usage(),
            **self.diagnostics(),
        }

    def stop(self) -> dict[str, object]:
        """Why the answer ended, or that it has not."""
        if self.end is None:
            return {"stop_reason": None, "stop_sequence": None}
        matched = self.end.matched
        if self.end.reason == "length":
            is_cut = self.generation.prompt.sampling.max_new_tokens is None
            return {"stop_reason": "model_context_window_exceeded" if is_cut else "max_tokens", "stop_sequence": None}
        if isinstance(matched, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": matched}
        return {"stop_reason": "tool_use" if self.answers.counts[0].calls else "end_turn", "stop_sequence": None}

    def diagnostics(self) -> dict[str, object]:
        """Why no more of the prompt was cached, for those who asked."""
        if self.explained is None:
            return {}
        return {"diagnostics": {"cache_miss_reason": self.explained.diagnosis()}}

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


async def _blocks(answer: _Answer) -> list[dict[str, object]]:
    """The content of the whole message."""
    pieces: list[Piece] = []
    async for _, step in answer.answers.steps():
        pieces += step.pieces
        answer.end = step.end
    blocks: list[dict[str, object]] = []
    for kind, group in itertools.groupby(pieces, type):
        run = list(group)
        calls = [_whole_call(answer, each) for each in run if isinstance(each, Call)]
        text = "".join(each.text for each in run if isinstance(each, Text | Thought))
        blocks += calls or [_empty_block(kind) | {"text" if kind is Text else "thinking": text}]
    return blocks


def _whole_call(answer: _Answer, call: Call) -> dict[str, object]:
    return _tool_use(answer, call) | {"input": json.loads(call.arguments)}


class _Events:
    """The events of a streamed message."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._is_begun = False
        self._index = -1
        self._kind: type[Piece] | None = None
        self._said: TextEvent | None = None

    def of(self, i: int, delta: Delta) -> Sequence[bytes]:
        """The events of a delta."""
        step = self._answer.answers.step(i, delta)
        events = []
        if not self._is_begun:
            self._is_begun = True
            events.append(named_event({"type": "message_start", "message": self._answer.message([])}))
        self._answer.end = step.end
        for piece in step.pieces:
            events += self._told(piece)
        return events

    def last(self) -> Sequence[bytes]:
        """The end of the last block, and of the message."""
        ends: dict[str, object] = {"type": "message_delta", "delta": self._answer.stop(), "usage": self._answer.usage()}
        return (*self._close(), named_event(ends), named_event({"type": "message_stop"}))

    def _told(self, piece: Piece) -> list[bytes]:
        match piece:
            case Call():
                events, text = self._begin(piece), piece.arguments
            case Arguments():
                events, text = [], piece.text
            case _:
                events, text = [] if self._kind is type(piece) else self._begin(piece), piece.text
        assert self._said is not None, "a block has begun"
        return [*events, self._said.of(text)]

    def _begin(self, piece: Text | Thought | Call) -> list[bytes]:
        """Begin the block of a piece, and end the one before."""
        events = self._close()
        self._index += 1
        self._kind = type(piece)
        block = _tool_use(self._answer, piece) if isinstance(piece, Call) else _empty_block(self._kind)
        begin = {"type": "content_block_start", "index": self._index, "content_block": block}
        index, kind = self._index, self._kind
        self._said = TextEvent(
            lambda text: {"type": "content_block_delta", "index": index, "delta": _delta(kind, text)}, named_event
        )
        return [*events, named_event(begin)]

    def _close(self) -> list[bytes]:
        if self._kind is None:
            return []
        return [named_event({"type": "content_block_stop", "index": self._index})]


def _empty_block(kind: type[Piece]) -> dict[str, object]:
    if kind is Thought:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _tool_use(answer: _Answer, call: Call) -> dict[str, object]:
    return {"type": "tool_use", "id": new_call_id(answer.answers.turn.front), "name": call.name, "input": {}}


def _delta(kind: type[Piece], text: str) -> dict[str, object]:
    if kind is Call:
        return {"type": "input_json_delta", "partial_json": text}
    return {"type": "text_delta", "text": text} if kind is Text else {"type": "thinking_delta", "thinking": text}


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
