"""Misses that another tokenizer's records explain."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runtime.chat_changes import NEW, Verdict
from runtime.chat_source import ChatSource
from runtime.judging import judge_together, judged_for_another
from runtime.peers import Peers
from runtime.records import Record, Records
from runtime.text.template import Message
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_scheduler import Answer, Ask
from wire.messages.to_tokenizer import Answered, Miss, Reuse

LONG = [*range(100, 160)]


def chat(*contents: str) -> ChatSource:
    def render(messages: Sequence[Message], *, with_tools: bool) -> str:
        return ""

    messages = [{"role": role, "content": text} for role, text in zip(("system", "user"), contents, strict=True)]
    return ChatSource(
        messages=messages, tools=[], variables={"now": object}, text="".join(contents), render=render
    )  # fmt: skip


def records() -> Records:
    return Records(lambda ids: "", lambda cause, tokens: None)


def served(
    kept: Records, request_id: str, token_ids: list[int], source: ChatSource | None, relative: str | None = None
) -> Record:
    record = Record(request_id, ids_to_bytes(token_ids), "", source)
    kept.add(record)
    cause = "never_seen" if relative is None else "forked"
    miss = Miss(cause=cause, position=10, given_ids=b"", expected_ids=b"", relative=relative)
    kept.scheduled(
        record, Reuse(prompt_tokens=len(token_ids), cached_tokens=10, copied_tokens=0, queue_s=0.0, miss=miss)
    )
    return record


def asked_of(*others: Records) -> Peers:
    """Each question reaches the others at once."""

    def send(message: Ask | Answer) -> None:
        assert isinstance(message, Ask)
        assert message.wish == "judge"
        for other in others:
            content = judged_for_another(other, message.about)
            peers.take_answer(Answered(ask_id=message.ask_id, content=content))

    peers = Peers(send, num_others=len(others))
    return peers


CLOCK = "It is 12:0{}. You answer questions about tides and harbours."


@pytest.mark.parametrize("is_chat", [True, False])
async def test_what_another_tokenizers_client_sent_differently_is_found_when_somebody_asks(is_chat: bool) -> None:
    own, nobody, other = records(), records(), records()
    changed = [*LONG[:10], 7, *LONG[11:]]
    served(other, "first", LONG, chat(CLOCK.format(1), "When is high water?") if is_chat else None)
    record = served(
        own, "second", changed, chat(CLOCK.format(2), "When is high water?") if is_chat else None, relative="first"
    )
    assert record.verdict == NEW
    await judge_together(own, asked_of(nobody, other), record)
    assert record.verdict == Verdict("client_changed", "system" if is_chat else None, "edited")
    record.verdict = NEW
    await judge_together(own, asked_of(nobody, other), record)
    assert record.verdict == NEW, "it is asked once"


async def test_what_nobody_knows_stays_as_it_was_judged_here() -> None:
    own = records()
    record = served(own, "second", LONG, chat(CLOCK.format(2), "When?"), relative="long ago")
    await judge_together(own, asked_of(records(), records()), record)
    assert record.cause == "never_seen"


async def test_what_the_own_records_explain_is_asked_of_nobody() -> None:
    own = records()
    served(own, "first", LONG, None)
    record = served(own, "second", [*LONG[:10], 7, *LONG[11:]], None, relative="first")

    def send(message: Ask | Answer) -> None:
        raise AssertionError(message)

    await judge_together(own, Peers(send, num_others=1), record)
    assert record.cause == "client_changed"
