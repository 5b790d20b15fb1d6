"""Ollama's API: `/api/chat` and `/api/generate` as lines of JSON, `/api/tags`, `/api/ps` and `/api/show` for the model.

Models are named with or without Ollama's `:latest`. Reads requests; the lines are made in `ollama_lines.py`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime

from aiohttp import web
from msgspec.structs import replace

from runtime.generation import Delta, Generation, Prompt, Times
from runtime.text.grammar import json_grammar
from runtime.text.template import USUAL_ROLES, Message, check_role
from wire.errors import Refused, UnknownModel
from wire.sampling import RANGES, Grammar, SamplingParams

from .chat_prompt import Chat, effort_variables, normalised_chat
from .chat_turn import Answers, Step, prepared, prompts_of
from .errors import json_response, spelled
from .fields import Fields, read_fields
from .front import FRONT, Front
from .live import stream
from .normaliser import tell
from .ollama_lines import CONTENT_TYPE, ENDING, HEADERS, Form, Lines, as_message, as_response, loaded, plain_step
from .place import PLACE_FIELDS, Place, read_place
from .route import Route
from .sampling import SAMPLING_FIELDS, OwnNames, read_sampling
from .schema import (
    Schema,
    anything,
    boolean,
    either,
    integer,
    list_of,
    mapping,
    ranged,
    record,
    shown,
    string,
    unsupported,
)
from .tools import CHAT_TOOL_FIELDS, read_tools

_SPOKEN = "0.9.0"
_TAG = ":latest"
_SET_BY_FLAGS = ("num_ctx", "num_batch", "num_gpu", "num_thread")

_OPTIONS = record(
    {
        **{name: schema for name, schema in SAMPLING_FIELDS.items() if name != "n"},
        "num_predict": integer(-2, text="Tokens in the answer, at most; -1 and -2: the rest of the context."),
        "repeat_penalty": ranged(RANGES["repetition_penalty"], "number", text="Of tokens in prompt and answer."),
        "seed": ranged(RANGES["seed"], "integer", text="Makes a sampled answer repeatable."),
        **{name: anything(text="Taken and not needed: the server's flags say.") for name in _SET_BY_FLAGS},
        **unsupported({"mirostat": 0, "tfs_z": 1, "typical_p": 1}),
    }
)
_COMMON: dict[str, Schema] = {
    **PLACE_FIELDS,
    "model": string(text="This server's model, or absent."),
    "stream": boolean(text="Send the answer line by line. Default true."),
    "options": _OPTIONS,
    "format": either(string(choices=("json", "")), mapping(), text="json, or a JSON schema that the answer must suit."),
    "think": either(boolean(), string(), text="Tells a template that knows it whether to think."),
    "keep_alive": anything(text="Taken and not needed: the model stays."),
}
_CHAT_BODY = record(
    {
        **_COMMON,
        "messages": list_of(
            record(
                {
                    "role": string(),
                    "content": string(),
                    "thinking": string(text="What an assistant thought."),
                    "tool_name": string(text="Whose result a tool's message is."),
                    "tool_calls": list_of(
                        record({"function": record({"name": string(), "arguments": mapping()})}),
                        text="What an assistant called.",
                    ),
                    **unsupported({"images": None}),
                }
            )
        ),
        "tools": CHAT_TOOL_FIELDS["tools"],
    }
)
_GENERATE_BODY = record(
    {
        **_COMMON,
        "prompt": string(text="A user's turn; with raw, what is continued."),
        "system": string(text="What stands before the turn."),
        "raw": boolean(text="Continue the prompt as it is, without the chat template."),
        **unsupported({"suffix": None, "template": None, "context": None, "images": None}),
    }
)
_NAMES = {
    "max_new_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "stop": "options.stop",
    "seed": "options.seed",
}


async def chat(request: web.Request) -> web.StreamResponse:
    """Give the assistant's next turn, in Ollama's shape."""
    front = request.app[FRONT]
    times = front.generator.arrival()
    fields = await read_fields(request)
    wish = _read_wish(front, fields)
    roles = USUAL_ROLES if front.template is None else front.template.roles
    messages = [_message(item, roles) for item in fields.items("messages")]
    asked = Chat(messages=messages, tools=read_tools(fields), variables=_thinking(fields))
    front.warn_unknown(fields)
    if not messages:
        return json_response(loaded(front.model_name, as_message))
    return await _answer_chat(request, asked, wish, times, form=as_message)


async def generate(request: web.Request) -> web.StreamResponse:
    """Answer a prompt as a chat of one turn, or with `raw` continue it."""
    front = request.app[FRONT]
    times = front.generator.arrival()
    fields = await read_fields(request)
    wish = _read_wish(front, fields)
    prompt, system = fields.string("prompt") or "", fields.string("system")
    is_raw = fields.boolean("raw", False) or front.template is None
    variables = _thinking(fields)
    front.warn_unknown(fields)
    if not prompt:
        return json_response(loaded(front.model_name, as_response))
    if is_raw:
        return await _continue(request, prompt, wish, times)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    asked = Chat(messages=[*messages, {"role": "user", "content": prompt}], variables=variables)
    with spelled({"messages": "prompt"}):
        return await _answer_chat(request, asked, wish, times, form=as_response)


async def _answer_chat(
    request: web.Request, asked: Chat, wish: _Wish, times: Times, *, form: Form
) -> web.StreamResponse:
    front = request.app[FRONT]
    asked = normalised_chat(front, asked)
    tell(request, asked.changes)
    turn = (await prepared(front, asked, wish.sampling)).cut_to_context()
    prompts = prompts_of(turn, wish.place, request_id=_new_id())

    def reading(generations: Sequence[Generation]) -> Callable[[Delta], Step]:
        # Calls are told whole, streamed or not: Ollama's clients know no parts of them.
        answers = Answers(turn, generations, is_streamed=False)
        return lambda delta: answers.step(0, delta)

    return await _answer(request, prompts, wish, times, form=form, reading=reading)


async def _continue(request: web.Request, text: str, wish: _Wish, times: Times) -> web.StreamResponse:
    front = request.app[FRONT]
    token_ids = await front.generator.encode(text, add_special_tokens=True, field="prompt")
    prompt = Prompt(
        token_ids=token_ids,
        sampling=front.generator.cut_to_context(wish.sampling, len(token_ids)),
        request_id=_new_id(),
        salt=wish.place.salt,
        priority=wish.place.priority,
        cache_priority=wish.place.cache_priority,
        cache_ttl_s=wish.place.cache_ttl_s,
    )
    front.window.take_texts([text], [prompt])
    return await _answer(request, [prompt], wish, times, form=as_response, reading=lambda _: plain_step)


async def _answer(
    request: web.Request,
    prompts: Sequence[Prompt],
    wish: _Wish,
    times: Times,
    *,
    form: Form,
    reading: Callable[[Sequence[Generation]], Callable[[Delta], Step]],
) -> web.StreamResponse:
    """Generate from the one prompt; `reading` gives what makes steps of its deltas."""
    front, request_id = request.app[FRONT], prompts[0].request_id
    with spelled(_NAMES):
        async with front.generator.start_all(prompts, times) as generations:
            lines = Lines(front.model_name, generations[0], reading(generations), form)
            if wish.is_stream:
                return await stream(request, generations, lines, request_id=request_id, ending=ENDING, headers=HEADERS)
            body = await lines.together()
    return json_response(body, headers={"X-Request-Id": request_id})


async def version(request: web.Request) -> web.Response:
    """The release of Ollama whose API this is; editors look for one that is new enough."""
    return json_response({"version": _SPOKEN})


async def list_models(request: web.Request) -> web.Response:
    """The one model, in Ollama's list."""
    front = request.app[FRONT]
    return json_response({"models": [_card(front) | {"modified_at": _started(front)}]})


async def list_loaded(request: web.Request) -> web.Response:
    """The same model among those in memory, and its context."""
    front = request.app[FRONT]
    return json_response({"models": [_card(front) | {"context_length": front.generator.client.stats.context_tokens}]})


async def show_model(request: web.Request) -> web.Response:
    """The model's kind, its context and what it can do."""
    front = request.app[FRONT]
    fields = await read_fields(request)
    name = fields.string("model")
    _check_model(front, fields.string("name") if name is None else name)
    fields.boolean("verbose", False)
    front.warn_unknown(fields)
    kind = str(front.files.model_config.get("model_type"))
    form = front.answer_form
    can = {"completion": True, "tools": form.calls is not None, "thinking": form.thoughts is not None}
    return json_response(
        {
            "modified_at": _started(front),
            "details": _details(front),
            "model_info": {
                "general.architecture": kind,
                f"{kind}.context_length": front.generator.client.stats.context_tokens,
            },
            "capabilities": [name for name, is_able in can.items() if is_able],
        }
    )


def _card(front: Front) -> dict[str, object]:
    return {
        "name": front.model_name,
        "model": front.model_name,
        "digest": front.generator.client.stats.model_fingerprint,
        "details": _details(front),
    }


def _details(front: Front) -> dict[str, object]:
    kind = front.files.model_config.get("model_type")
    return {"family": kind, "families": [kind], "parent_model": ""}


def _started(front: Front) -> str:
    return datetime.fromtimestamp(front.started_at, UTC).isoformat().replace("+00:00", "Z")


def _new_id() -> str:
    return f"ollama-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What both routes read of a request, beside what is to be answered."""

    sampling: SamplingParams
    place: Place
    is_stream: bool


def _read_wish(front: Front, fields: Fields) -> _Wish:
    _check_model(front, fields.string("model"))
    fields.raw("keep_alive")
    return _Wish(
        sampling=_read_sampling(front, fields), place=read_place(fields), is_stream=fields.boolean("stream", True)
    )


def _check_model(front: Front, name: str | None) -> None:
    served = (front.model_name, front.launch.model_path)
    if name is not None and name not in served and name.removesuffix(_TAG) not in served:
        raise UnknownModel(
            f"model {shown(name)} is not served here; {front.model_name!r} is. See /api/tags.", field="model"
        )


def _read_sampling(front: Front, fields: Fields) -> SamplingParams:
    options = fields.fields("options")
    wanted = options.integer("num_predict")
    names = OwnNames(
        max_new_tokens=None if wanted is None or wanted < 0 else wanted,
        min_new_tokens=None,
        seed=options.integer("seed"),
        num_top_logprobs=None,
        grammar=_read_format(fields),
    )
    sampling = read_sampling(options, names)
    penalty = options.number("repeat_penalty")
    for name in _SET_BY_FLAGS:
        options.raw(name)
    front.warn_unknown(options)
    return sampling if penalty is None else replace(sampling, repetition_penalty=penalty)


def _read_format(fields: Fields) -> Grammar | None:
    match fields.raw("format"):
        case None | "":
            return None
        case "json":
            return json_grammar({"type": "object"}, field="format")
        case schema:
            return json_grammar(schema, field="format")


def _thinking(fields: Fields) -> dict[str, object]:
    match fields.raw("think"):
        case bool() as is_thinking:
            return {"enable_thinking": is_thinking}
        case str() as effort:
            return effort_variables(effort)
        case _:
            return {}


def _message(item: Fields, roles: Set[str]) -> Message:
    role = item.string("role")
    if not role:
        raise Refused(f"{item.name('role')} is missing. Set it to user, for example.", field=item.name("role"))
    check_role(role, roles, field=item.name("role"))
    message: Message = {"role": role, "content": item.string("content") or ""}
    thought, tool = item.string("thinking"), item.string("tool_name")
    if thought:
        message["reasoning_content"] = thought
    if tool:
        message["name"] = tool
    calls = [_call(call.fields("function")) for call in item.items("tool_calls")]
    return message | ({"tool_calls": calls} if calls else {})


def _call(function: Fields) -> dict[str, object]:
    name = function.string("name")
    if not name:
        raise Refused(f"{function.name('name')} is missing. Name the function.", field=function.name("name"))
    return {"type": "function", "function": {"name": name, "arguments": function.mapping("arguments")}}


_HELLO: dict[str, object] = {"messages": [{"role": "user", "content": "Hello"}], "options": {"num_predict": 32}}

ROUTES = (
    Route(
        method="POST",
        path="/api/chat",
        handler=chat,
        is_work=True,
        body=_CHAT_BODY,
        examples=(_HELLO, _HELLO | {"stream": False, "format": "json"}),
        answer=CONTENT_TYPE,
    ),
    Route(
        method="POST",
        path="/api/generate",
        handler=generate,
        is_work=True,
        body=_GENERATE_BODY,
        examples=(
            {"prompt": "What is gravity?", "options": {"num_predict": 16, "temperature": 0}},
            {"prompt": "The capital of France is", "raw": True, "stream": False, "options": {"num_predict": 8}},
        ),
        answer=CONTENT_TYPE,
    ),
    Route(method="GET", path="/api/version", handler=version),
    Route(method="GET", path="/api/tags", handler=list_models),
    Route(method="GET", path="/api/ps", handler=list_loaded),
    Route(
        method="POST",
        path="/api/show",
        handler=show_model,
        body=record({"model": string(), "name": string(text="An older name of model."), "verbose": boolean()}),
        examples=({},),
    ),
)
