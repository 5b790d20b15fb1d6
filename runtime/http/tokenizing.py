"""`/tokenize` and `/detokenize`: texts and chats to token ids, and back."""

from __future__ import annotations

from aiohttp import web

from runtime.generator import MAX_PROMPTS, check_num_prompts
from wire.errors import Refused

from .chat_prompt import CHAT_PROMPT_FIELDS, read_chat_prompt
from .errors import json_response
from .fields import Fields, read_fields
from .front import FRONT, Front
from .openai import check_model
from .route import Route
from .schema import boolean, integer, list_of, one_or_list, record, string

_MAX_DETOKENIZED = 131_072
"""Token ids in one `/detokenize`: the library holds the interpreter's lock while it decodes."""

_TOKENIZE_BODY = record(
    {
        **CHAT_PROMPT_FIELDS,
        "model": string(text="This server's model, or absent."),
        "prompt": one_or_list(string(), most=MAX_PROMPTS, text="A text, or several. Either this or messages."),
        "add_special_tokens": boolean(text="As for a prompt. Default true."),
    }
)
_DETOKENIZE_BODY = record(
    {
        "model": string(text="This server's model, or absent."),
        "tokens": list_of(integer(), most=_MAX_DETOKENIZED),
        "skip_special_tokens": boolean(text="Leave special tokens out of the text. Default true."),
    },
    required=("tokens",),
)


async def tokenize(request: web.Request) -> web.Response:
    """Token ids of a text, of each of several, or of a chat's messages."""
    front = request.app[FRONT]
    fields = await read_fields(request)
    check_model(front, fields)
    if fields.raw("messages") is not None:
        token_ids = [list(await read_chat_prompt(front, fields))]
    else:
        token_ids = await _tokenised(front, fields)
    counts = [len(ids) for ids in token_ids]
    is_batch = isinstance(fields.raw("prompt"), list)
    return json_response(
        {
            "tokens": token_ids if is_batch else token_ids[0],
            "count": counts if is_batch else counts[0],
            "max_model_len": front.generator.client.stats.context_tokens,
        }
    )


async def _tokenised(front: Front, fields: Fields) -> list[list[int]]:
    texts = fields.strings("prompt")
    if fields.raw("prompt") is None:
        raise Refused(
            "prompt is missing; it must be a string or a list of strings. Send it, or messages.", field="prompt"
        )
    check_num_prompts(len(texts), field="prompt")
    with_special_tokens = fields.boolean("add_special_tokens", True)
    encode = front.generator.tokenizer.encode
    return await front.generator.off_loop(
        sum(map(len, texts)), lambda: [encode(text, add_special_tokens=with_special_tokens) for text in texts]
    )


async def detokenize(request: web.Request) -> web.Response:
    """Text of token ids."""
    front = request.app[FRONT]
    fields = await read_fields(request)
    check_model(front, fields)
    token_ids = fields.integers("tokens")
    if token_ids:
        front.generator.known_ids(token_ids, field="tokens")
    is_skipping = fields.boolean("skip_special_tokens", True)
    decode = front.generator.tokenizer.decode
    text = await front.generator.off_loop(len(token_ids), lambda: decode(token_ids, skip_special_tokens=is_skipping))
    return json_response({"text": text})


ROUTES = tuple(
    route
    for prefix in ("", "/v1")
    for route in (
        Route(
            method="POST",
            path=f"{prefix}/tokenize",
            handler=tokenize,
            body=_TOKENIZE_BODY,
            examples=({"prompt": "hello"}, {"messages": [{"role": "user", "content": "hello"}]}),
        ),
        Route(
            method="POST",
            path=f"{prefix}/detokenize",
            handler=detokenize,
            body=_DETOKENIZE_BODY,
            examples=({"tokens": [72, 105]},),
        ),
    )
)
