"""`/v1/score`: how likely each of a few tokens is to come behind a query and an item, as SGLang's clients ask for it.

Nothing is generated beyond the one token whose place is looked at. All items of a query share its cached pages.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Sequence

from aiohttp import web

from runtime.generation import Generation, Prompt
from runtime.generator import MAX_PROMPTS
from wire.errors import Cancelled, Refused
from wire.sampling import MAX_LOGPROB_IDS, SamplingParams

from .errors import json_response
from .fields import Fields, is_integers
from .front import FRONT, Front
from .openai import check_model, read_json, usage
from .place import PLACE_FIELDS, Place, read_place
from .route import Route
from .schema import boolean, either, integer, list_of, record, string, unsupported

_BODY = record(
    {
        **PLACE_FIELDS,
        "model": string(text="This server's model, or absent."),
        "query": either(string(), list_of(integer()), text="What stands before each item: a text, or token ids."),
        "items": either(
            string(),
            list_of(string(), most=MAX_PROMPTS),
            list_of(list_of(integer()), most=MAX_PROMPTS),
            text="Texts or lists of token ids, as the query is.",
        ),
        "label_token_ids": list_of(integer(), least=1, most=MAX_LOGPROB_IDS, text="The tokens to be rated."),
        "apply_softmax": boolean(text="Let the scores of each item sum to 1. Default false: plain probabilities."),
        "item_first": boolean(text="Put each item before the query, not behind it."),
        **unsupported({"return_pooled_hidden_states": None}),
    },
    required=("query", "items", "label_token_ids"),
)


async def score(request: web.Request) -> web.Response:
    """Tell the probabilities of `label_token_ids` behind the query with each item."""
    front = request.app[FRONT]
    times = front.generator.arrival()
    fields = await read_json(request)
    check_model(front, fields)
    label_ids = front.generator.known_ids(fields.integers("label_token_ids"), field="label_token_ids")
    is_normalised = fields.boolean("apply_softmax", False)
    token_ids = await _read_token_ids(front, fields)
    prompts = _prompts(token_ids, label_ids, read_place(fields))
    front.warn_unknown(fields)
    async with front.generator.start_all(prompts, times) as generations:
        scores = [_scores(each, is_normalised) for each in await asyncio.gather(*map(_label_logprobs, generations))]
    return json_response(
        {"object": "scoring", "model": front.model_name, "scores": scores, "usage": usage(generations)},
        headers={"X-Request-Id": prompts[0].request_id},
    )


async def _read_token_ids(front: Front, fields: Fields) -> list[list[int]]:
    """The prompt of each item."""
    query, items, is_first = fields.raw("query"), fields.raw("items"), fields.boolean("item_first", False)
    items = [items] if isinstance(items, str) else items
    if not items:
        raise Refused("items is empty; it must hold at least one. Send one.", field="items")
    assert isinstance(items, list)
    generator = front.generator
    if isinstance(query, str) and all(isinstance(item, str) for item in items):
        texts = [item + query if is_first else query + item for item in items]
        return await generator.encode_all(texts, add_special_tokens=True, field="items")
    if isinstance(query, list) and all(isinstance(item, list) and is_integers(item) for item in items):
        return [
            generator.checked_ids([*item, *query] if is_first else [*query, *item], field="items") for item in items
        ]
    raise fields.wrong_type("items", "texts when query is a text, lists of token ids when it is one", items)


def _prompts(token_ids: Sequence[Sequence[int]], label_ids: Sequence[int], place: Place) -> list[Prompt]:
    sampling = SamplingParams(
        max_new_tokens=1, temperature=0.0, ignore_eos=True, num_top_logprobs=0, logprob_ids=tuple(label_ids)
    )
    request_id = f"score-{uuid.uuid4().hex}"
    return [
        Prompt(
            token_ids=each,
            sampling=sampling,
            request_id=f"{request_id}_{i}",
            salt=place.salt,
            priority=place.priority,
            cache_priority=place.cache_priority,
            cache_ttl_s=place.cache_ttl_s,
        )
        for i, each in enumerate(token_ids)
    ]


async def _label_logprobs(generation: Generation) -> list[float]:
    logprobs: list[float] = []
    async for delta in generation:
        if delta.end is not None and delta.end.reason == "cancelled":
            raise Cancelled(delta.end.message or "the request was aborted.")
        logprobs += [logprob for token in delta.logprobs for _, logprob in token.chosen]
    return logprobs


def _scores(logprobs: Sequence[float], is_normalised: bool) -> list[float]:
    """Probabilities; where they are to sum to 1, of these tokens alone.

    >>> _scores([math.log(0.2), math.log(0.05)], True)
    [0.8, 0.2]
    """
    likeliest = max(logprobs) if is_normalised else 0.0
    scores = [math.exp(logprob - likeliest) for logprob in logprobs]
    total = sum(scores) if is_normalised else 1.0
    return [each / total for each in scores]


ROUTES = (
    Route(
        method="POST",
        path="/v1/score",
        handler=score,
        is_work=True,
        body=_BODY,
        examples=(
            {"query": "Is this a colour? ", "items": ["red", "seven"], "label_token_ids": [72, 105]},
            {"query": [72], "items": [[105], [72, 105]], "label_token_ids": [72], "apply_softmax": True},
        ),
    ),
)
