"""Outlines for those who look: one walk for many, for a hundredth of the time at most, and salts nobody can read."""

from __future__ import annotations

import numpy as np
import pytest

from radix.cache import PrefixCache
from radix.outline import Column
from scheduler import salts
from scheduler.outlines import FRESH_S, PATIENCE_S, TIME_SHARE, Asker, Outlines
from scheduler.request import ClientId
from scheduler.state import Reply, expected_left_s
from tests.radix.serving import CHAT, OTHER, serve
from tests.scheduler.harness import make_harness
from wire.messages.to_tokenizer import ControlReply, Outline


@pytest.fixture
def cache() -> PrefixCache:
    cache = PrefixCache(num_pages=64, page_tokens=4)
    cache.tell_time(10.0)
    serve(cache, range(20), CHAT)
    serve(cache, range(9), OTHER)
    return cache


def asker(control_id: int) -> Asker:
    return Asker(ClientId(b"tokenizer"), control_id)


def outline_in(reply: Reply) -> Outline:
    assert isinstance(reply.message, ControlReply)
    assert reply.message.outline is not None
    return reply.message.outline


def test_nobody_asks_and_nothing_is_made(cache: PrefixCache) -> None:
    outlines = Outlines()
    assert outlines.answers(cache, 10.0, spare_s=1.0) == []
    assert outlines.due_s() == float("inf")
    assert not outlines.made


def test_all_who_ask_within_a_second_get_one_outline(cache: PrefixCache) -> None:
    outlines = Outlines()
    outlines.ask(asker(1), None)
    outlines.ask(asker(2), None)
    first, second = outlines.answers(cache, 10.0, spare_s=1.0)
    outlines.ask(asker(3), None)
    (third,) = outlines.answers(cache, 10.0 + 0.9 * FRESH_S, spare_s=1.0)
    assert outline_in(first) is outline_in(second) is outline_in(third)
    outlines.ask(asker(4), None)
    (fourth,) = outlines.answers(cache, 10.0 + 1.1 * FRESH_S, spare_s=1.0)
    assert outline_in(fourth) is not outline_in(first)


def test_the_next_one_waits_until_the_walks_took_a_hundredth_of_the_time(cache: PrefixCache) -> None:
    outlines = Outlines()
    outlines.ask(asker(1), None)
    (reply,) = outlines.answers(cache, 10.0, spare_s=1.0)
    outlines.ask(asker(2), 0)
    due_s = 10.0 + outline_in(reply).took_s / TIME_SHARE
    assert outlines.due_s() == due_s > 10.0
    assert outlines.answers(cache, (10.0 + due_s) / 2, spare_s=1.0) == []
    assert len(outlines.answers(cache, due_s, spare_s=1.0)) == 1


def test_a_walk_waits_for_steps_that_last_longer_but_not_for_ever(cache: PrefixCache) -> None:
    outlines = Outlines()
    outlines.ask(asker(1), None)
    assert outlines.answers(cache, 10.0, spare_s=0.001), "how long one takes is not known yet"
    outlines.took_s = 0.005
    outlines.ask(asker(2), None)
    assert outlines.answers(cache, 20.0, spare_s=0.001) == []
    assert 20.0 < outlines.due_s() < 20.1, "it asks again soon, and does not keep the processor busy until then"
    assert len(outlines.answers(cache, 20.5, spare_s=0.01)) == 1
    outlines.took_s = 0.005
    outlines.ask(asker(3), None)
    assert outlines.answers(cache, 30.0, spare_s=0.001) == []
    assert len(outlines.answers(cache, 30.1 + PATIENCE_S, spare_s=0.001)) == 1


def test_the_runner_is_busy_with_what_it_was_sent() -> None:
    harness = make_harness()
    assert expected_left_s(harness.state, now_s=0.0) == float("inf")
    harness.submit("a", [*range(3, 43)])
    harness.send_plan()
    one_s = expected_left_s(harness.state, now_s=0.0)
    harness.send_plan()
    assert expected_left_s(harness.state, now_s=0.0) > one_s > expected_left_s(harness.state, now_s=one_s / 2)


def test_ages_count_from_now_and_salts_are_digests_of_a_key_of_this_launch(
    cache: PrefixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    outlines = Outlines()
    outlines.ask(asker(1), None)
    outline = outline_in(outlines.answers(cache, 12.5, spare_s=1.0)[0])
    entries = np.frombuffer(outline.entries, np.int64).reshape(-1, len(outline.columns))
    assert outline.columns[Column.USED_MS] == "age_ms"
    assert set(entries[:, Column.USED_MS].tolist()) == {2500}
    plain, salted = sorted(outline.roots, key=lambda root: root.salt_digest or "")
    assert plain.salt_digest is None
    assert salted.salt_digest not in (None, OTHER.salt)
    monkeypatch.setattr(salts, "_KEY", b"drawn at another start")
    again = Outlines()
    again.ask(asker(1), None)
    assert outline_in(again.answers(cache, 12.5, spare_s=1.0)[0]).roots != outline.roots
