"""`/v1/completions`: OpenAI's API for plain text, with lists of prompts and of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web
from msgspec.structs import replace

from runtime.generation import Delta, Generation, Prompt, TokenLogprob
from runtime.generator import check_num_answers, check_num_prompts
from runtime.merged import merged
from runtime.text.tokenizer import Tokenizer
from wire.errors import Refused
from wire.sampling import RANGES

from .errors import json_response, spelled
from .events import event
from .explained import explain
from .fields import Fields, is_integers
from .front import FRONT, Front
from .live import stream
from .openai import OPENAI_FIELDS, Answering, begin, finish, read_openai_sampling
from .place import OPENAI_PLACE_FIELDS, read_openai_place
from .route import Route
from .sampling import read_num_samples
from .schema import boolean, either, integer, list_of, ranged, record, string, unsupported

DEFAULT_NEW_TOKENS = 16

_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}

COMPLETIONS_BODY = record(
    {
        **OPENAI_FIELDS,
        **OPENAI_PLACE_FIELDS,
        "prompt": either(string(), list_of(string()), list_of(integer()), list_of(list_of(integer()))),
        "max_tokens": ranged(RANGES["max_new_tokens"], "integer", text="Default 16."),
        "logprobs": ranged(
            RANGES["num_top_logprobs"], "integer", text="Tell the logprobs of the n most likely tokens."
        ),
        "echo": boolean(text="Put the prompt in front of the answer."),
        **unsupported({"suffix": None, "best_of": 1, "prompt_logprobs": None}),
    },
    required=("prompt",),
)
"""What `/v1/completions` takes."""


@dataclass(slots=True)
class _Choice:
    """One answer so far, and where the text of its next token (with logprobs, the prompt's too) begins."""

    index: int
    tokenizer: Tokenizer
    with_logprobs: bool
    prompt_text: str
    offset: int = 0
    is_begun: bool = False

    def body(self, delta: Delta) -> dict[str, object]:
        """The delta as a choice; an echoed prompt stands before the first one."""
        text = delta.text if self.is_begun else self.prompt_text + delta.text
        self.is_begun = True
        logprobs = self._logprobs([*delta.prompt_logprobs, *delta.logprobs]) if self.with_logprobs else None
        return {**self.plain(text), "logprobs": logprobs, **finish(delta.end)}

    def plain(self, text: str) -> dict[str, object]:
        """A choice that tells of a text and nothing else."""
        return {"index": self.index, "text": text, "logprobs": None, **finish(None)}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, object]:
        texts = [self.tokenizer.token_text(token.token_id) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(self.offset)
            self.offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._top(token, text) for token, text in zip(tokens, texts, strict=True)],
            "text_offset": offsets,
        }

    def _top(self, token: TokenLogprob, text: str) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        top = {self.tokenizer.token_text(token_id): logprob for token_id, logprob in token.top}
        return top | {text: token.logprob}


async def completions(request: web.Request) -> web.StreamResponse:
    """Continue one prompt or several."""
    front = request.app[FRONT]
    times = front.generator.arrival()
    fields, answering = await begin(request, prefix="cmpl", kind="text_completion")
    prompts = await _read_prompts(front, fields, answering)
    is_echoed = fields.boolean("echo", False)
    with_logprobs = prompts[0].sampling.num_top_logprobs is not None
    front.warn_unknown(fields)
    choices = []
    for i, prompt in enumerate(prompts):
        text = front.generator.tokenizer.decode(prompt.token_ids, skip_special_tokens=True) if is_echoed else ""
        choices.append(_Choice(i, front.generator.tokenizer, with_logprobs, text))
    with spelled(_NAMES):
        async with front.generator.start_all(prompts, times) as generations:
            explained = explain(request, generations) if answering.is_explained else None
            if answering.is_stream:
                events = _Events(answering, generations, choices)
                return await stream(request, generations, events, request_id=answering.id)
            deltas: list[list[Delta]] = [[] for _ in generations]
            async for i, delta in merged(generations):
                deltas[i].append(delta)
    bodies = [choice.body(_joined(parts)) for choice, parts in zip(choices, deltas, strict=True)]
    body = answering.whole(bodies, generations)
    if explained is not None:
        body["cache"] = await explained.bodies()
    return json_response(body, headers={"X-Request-Id": answering.id})


class _Events:
    """The chunks of a stream."""

    def __init__(self, answering: Answering, generations: Sequence[Generation], choices: Sequence[_Choice]) -> None:
        self._answering = answering
        self._generations = generations
        self._choices = choices
        with_more = answering.with_usage_in_each or choices[0].with_logprobs
        self._plain = [] if with_more else [answering.text_event(choice.plain) for choice in choices]

    def of(self, i: int, delta: Delta) -> Sequence[bytes]:
        """The chunk of a delta that has something to tell."""
        choice = self._choices[i]
        if self._plain and choice.is_begun and delta.end is None:
            return (self._plain[i].of(delta.text),) if delta.text else ()
        if delta.text or delta.logprobs or delta.prompt_logprobs or delta.end is not None or not choice.is_begun:
            return (event(self._answering.chunk([choice.body(delta)], [self._generations[i]])),)
        return ()

    def last(self) -> Sequence[bytes]:
        """The usage, for those who asked for it."""
        return self._answering.last_events(self._generations)


async def _read_prompts(front: Front, fields: Fields, answering: Answering) -> list[Prompt]:
    wanted = fields.integer("max_tokens")
    sampling = read_openai_sampling(
        fields,
        max_new_tokens=DEFAULT_NEW_TOKENS if wanted is None else wanted,
        num_top_logprobs=fields.integer("logprobs"),
    )
    if fields.boolean("echo", False) and sampling.num_top_logprobs is not None:
        sampling = replace(sampling, prompt_logprobs_from=0)
    place = read_openai_place(fields)
    token_ids = await _read_token_ids(front, fields)
    num_samples = read_num_samples(fields)
    check_num_answers(len(token_ids) * num_samples, field="n")
    prompts: list[Prompt] = []
    for i, each in enumerate(token_ids):
        request_id = answering.id if len(token_ids) == 1 else f"{answering.id}_{i}"
        prompt = Prompt(
            token_ids=each,
            sampling=sampling,
            request_id=request_id,
            salt=place.salt,
            priority=place.priority,
            cache_priority=place.cache_priority,
            cache_ttl_s=place.cache_ttl_s,
        )
        prompts += prompt.samples(num_samples)
    given = fields.raw("prompt")
    texts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    front.window.take_texts([text for text in texts if isinstance(text, str)], prompts)
    return prompts


async def _read_token_ids(front: Front, fields: Fields) -> list[list[int]]:
    generator = front.generator
    match fields.raw("prompt"):
        case None | []:
            raise Refused("prompt is empty; it must hold at least one token. Send a prompt.", field="prompt")
        case str() as text:
            return [await generator.encode(text, add_special_tokens=True, field="prompt")]
        case [str(), *_] as texts if all(isinstance(text, str) for text in texts):
            return await generator.encode_all([str(text) for text in texts], add_special_tokens=True, field="prompt")
        case [list(), *_] as lists if all(isinstance(ids, list) and is_integers(ids) for ids in lists):
            check_num_prompts(len(lists), field="prompt")
            return [generator.checked_ids(list(ids), field="prompt") for ids in lists if isinstance(ids, list)]
        case list() as ids if is_integers(ids):
            return [generator.checked_ids(ids, field="prompt")]
        case other:
            raise fields.wrong_type("prompt", "a string, a list of strings, token ids or a list of such lists", other)


def _joined(deltas: Sequence[Delta]) -> Delta:
    return Delta(
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        logprobs=[token for delta in deltas for token in delta.logprobs],
        prompt_logprobs=[token for delta in deltas for token in delta.prompt_logprobs],
        end=deltas[-1].end,
    )


ROUTES = (
    Route(
        method="POST",
        path="/v1/completions",
        handler=completions,
        is_work=True,
        body=COMPLETIONS_BODY,
        examples=(
            {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
            {"prompt": [[72, 105], [72]], "logprobs": 2, "echo": True, "n": 2, "stream": True},
        ),
    ),
)
