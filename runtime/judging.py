"""A miss judged together: each tokenizer has the records of its own requests only, so the others are asked.

That takes a message with the whole chat, so it is done when somebody asks about a request, never for all. No HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from wire.errors import Refused, Unavailable
from wire.messages.to_tokenizer import Miss, Reuse

from .chat_changes import NEW, Verdict
from .chat_source import ChatSource
from .peers import Peers
from .records import Record, Records
from .text.template import Message

log = logging.getLogger(__name__)

MOST_BYTES = 4_000_000
"""A chat that takes more memory is not sent around."""


class _Case(Struct, frozen=True, kw_only=True):
    """A request and its miss; a chat has `text`."""

    token_ids: bytes
    salt: str
    miss: Miss
    text: str | None = None
    messages: Sequence[dict[str, object]] = ()
    tools: Sequence[dict[str, object]] = ()
    variables: dict[str, object] = {}


class _Judgement(Struct, frozen=True, kw_only=True):
    """What a tokenizer says; `is_known`: it has the record of the nearest request."""

    verdict: Verdict
    is_known: bool


_decode_case = msgspec.json.Decoder(_Case).decode
_decode_judgement = msgspec.msgpack.Decoder(_Judgement).decode


async def judge_together(records: Records, peers: Peers, record: Record) -> None:
    """Have the other tokenizers judge a miss that this one's records can't tell from something new."""
    miss = record.miss
    if miss is None or not records.is_doubtful(record) or not peers.num_others:
        return
    if record.source_bytes > MOST_BYTES:
        return
    try:
        answers = await peers.ask("judge", _encoded(record, miss))
    except Unavailable as error:
        log.warning("judged request_id=%s by its own records: %s", record.request_id, error)
        return
    judgements = sorted(map(_decode_judgement, answers), key=lambda each: not each.is_known)
    found = [each.verdict for each in judgements if each.verdict != NEW]
    records.settle(record, found[0] if found else record.verdict)


def judged_for_another(records: Records, about: str) -> bytes:
    """What this tokenizer's records say to another's case."""
    case = _decode_case(about)
    source = None
    if case.text is not None:
        source = ChatSource(
            messages=case.messages, tools=case.tools, variables=case.variables, text=case.text, render=_not_here
        )
    record = Record("", case.token_ids, case.salt, source)
    record.reuse = Reuse(prompt_tokens=record.num_tokens, cached_tokens=0, copied_tokens=0, queue_s=0.0, miss=case.miss)
    is_known = records.find(case.miss.relative) is not None
    return msgspec.msgpack.encode(_Judgement(verdict=records.judged(record, case.miss), is_known=is_known))


def _encoded(record: Record, miss: Miss) -> str:
    source = record.source
    case = _Case(token_ids=record.token_ids, salt=record.salt, miss=miss)
    if source is not None:
        case = msgspec.structs.replace(
            case, text=source.text, messages=source.messages, tools=source.tools, variables=dict(source.variables)
        )
    return msgspec.json.encode(case, enc_hook=_unknown).decode()


def _unknown(value: object) -> object:
    """Anything else that a template was given: equal ones look alike."""
    return dict(value) if isinstance(value, Mapping) else repr(value)


def _not_here(messages: Sequence[Message], *, with_tools: bool) -> str:
    raise Refused("another tokenizer's chat is not rendered here")
