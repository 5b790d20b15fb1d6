from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import pytest

from runtime import records as records_module
from runtime.chat_changes import Verdict
from runtime.chat_source import ChatSource, Render
from runtime.records import MAX_KEPT_BYTES, MAX_RECORDS, Record, Records
from wire.messages.encoding import TOKEN_BYTES, ids_to_bytes
from wire.messages.to_tokenizer import Miss, MissCause, Reuse

LONG = [*range(100, 160)]


class Kept:
    def __init__(self, *, log_share: float = 0.0) -> None:
        self.misses: list[tuple[str, int]] = []
        self.records = Records(
            lambda ids: str(ids), lambda cause, tokens: self.misses.append((cause, tokens)), log_share=log_share
        )

    def serve(
        self, request_id: str, token_ids: list[int], *, position: int, cause: MissCause = "forked",
        relative: str | None = None, salt: str = "",
    ) -> Record:  # fmt: skip
        record = Record(request_id, ids_to_bytes(token_ids), salt, None)
        self.records.add(record)
        miss = Miss(cause=cause, position=position, given_ids=b"", expected_ids=b"", relative=relative)
        reuse = Reuse(prompt_tokens=len(token_ids), cached_tokens=position, copied_tokens=0, queue_s=0.0, miss=miss)
        self.records.scheduled(record, reuse)
        return record


def test_a_plain_prompt_that_ends_like_the_one_it_parted_from_was_changed() -> None:
    kept = Kept()
    kept.serve("a", LONG, position=0, cause="never_seen")
    changed = kept.serve("b", [*LONG[:5], 7, *LONG[6:]], position=5, relative="a")
    new = kept.serve("c", [*LONG[:30], *range(30)], position=30, relative="a")
    assert changed.verdict == Verdict("client_changed", None, "edited")
    assert new.verdict == Verdict("never_seen")
    assert kept.misses == [("never_seen", 60), ("client_changed", 55), ("never_seen", 30)]


def test_where_the_nearest_request_is_not_known_the_record_that_begins_most_alike_stands_for_it() -> None:
    kept = Kept()
    kept.serve("far", [*LONG[:3], *range(57)], position=0, cause="never_seen")
    kept.serve("near", LONG, position=0, cause="never_seen")
    changed = kept.serve("b", [*LONG[:5], 7, *LONG[6:]], position=5, relative="of another tokenizer")
    assert changed.cause == "client_changed"
    salted = kept.serve("c", [*LONG[:5], 8, *LONG[6:]], position=5, salt="other")
    assert salted.cause == "never_seen", "records of other salts are nobody's business"


def test_what_a_chat_keeps_beside_its_ids_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "MAX_KEPT_BYTES", 20_000)
    records = Kept().records

    def add(request_id: str, *, text: str = "", num_messages: int = 1, tools: Sequence[dict[str, object]] = ()) -> None:
        messages = [{"role": "user", "content": ""}] * num_messages
        render = cast(Render, None)
        source = ChatSource(messages=messages, tools=tools, variables={}, text=text, render=render)
        records.add(Record(request_id, b"", "", source))

    add("small", text="x" * 4000)
    add("cjk", text="漢" * 4000)
    assert [each.request_id for each in records.latest()] == ["cjk"], "its text and messages take two bytes a character"
    add("many", num_messages=50)
    assert [each.request_id for each in records.latest()] == ["many"]
    add("tools", tools=[{"function": {"name": "f", "description": "d" * 1000}}])
    assert [each.request_id for each in records.latest()] == ["tools"]


def test_records_are_few_and_small_and_the_oldest_go_first() -> None:
    records = Kept().records
    for i in range(MAX_RECORDS + 5):
        records.add(Record(str(i), bytes(8), "", None))
    assert len(records) == MAX_RECORDS
    assert records.find("4") is None
    assert [each.request_id for each in records.latest()][:2] == [str(MAX_RECORDS + 4), str(MAX_RECORDS + 3)]
    records.add(Record("large", bytes(MAX_KEPT_BYTES), "", None))
    assert [each.request_id for each in records.latest()] == ["large"]
    records.add(Record("large", bytes(8), "", None))
    records.add(Record("next", bytes(8), "", None))
    assert len(records) == 2, "a record that was replaced takes no memory"


@pytest.mark.parametrize(("cached", "missed"), [(0, 59), (16, 43), (59, 0)])
def test_where_no_causes_are_kept_what_was_missing_is_told_still(cached: int, missed: int) -> None:
    record = Record("a", ids_to_bytes(LONG), "", None)
    assert record.missed_tokens == 0
    Kept().records.scheduled(record, Reuse(prompt_tokens=60, cached_tokens=cached, copied_tokens=0, queue_s=0.0))
    assert (record.cause, record.missed_tokens) == (None, missed)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_log_has_a_line_of_the_wished_share_and_no_text(share: float, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Kept(log_share=share).serve("a", LONG, position=2, cause="evicted")
    lines = [record.getMessage() for record in caplog.records]
    expected = "cache request_id=a prompt_tokens=60 cached_tokens=2 cause=evicted position=2 part=None change=None"
    assert lines == ([expected] if share else [])


def test_answers_count_once_they_have_ended() -> None:
    records = Kept().records
    record = Record("long", bytes(8), "", None)
    records.add(record)
    records.add(Record("next", bytes(8), "", None))
    record.output_ids = [300] * (MAX_KEPT_BYTES // TOKEN_BYTES)
    record.end("length", 2.0, 1.0)
    records.ended(record)
    assert records.find("long") is None
    records.add(Record("large", bytes(MAX_KEPT_BYTES - 8), "", None))
    assert len(records) == 2, "what has gone is not counted any more"


def test_the_answer_of_a_record_that_went_before_its_end_is_not_counted() -> None:
    records = Kept().records
    record = Record("again", bytes(8), "", None)
    records.add(record)
    records.add(Record("again", bytes(8), "", None))
    record.output_ids = [300] * (MAX_KEPT_BYTES // TOKEN_BYTES)
    record.end("length", 2.0, 1.0)
    records.ended(record)
    records.add(Record("next", bytes(8), "", None))
    assert len(records) == 2
