"""The cause of a miss at first scheduling, as far as integers tell."""

from __future__ import annotations

import pytest

from scheduler.config import SchedulerConfig
from tests.scheduler.harness import Harness, make_harness
from wire.messages.encoding import bytes_to_ids
from wire.messages.to_tokenizer import Miss

LONG = [*range(3, 43)]


def ask(harness: Harness, request_id: str, prompt: list[int], *, salt: str = "", first: int | None = None) -> Miss:
    harness.submit(request_id, prompt, max_new_tokens=1, salt=salt, prompt_logprobs_from=first)
    harness.run()
    miss = harness.reuses[request_id].miss
    assert miss is not None
    assert miss.position == harness.reuses[request_id].cached_tokens
    assert bytes_to_ids(miss.given_ids) == prompt[miss.position : miss.position + 16]
    return miss


def test_the_first_prompt_was_never_seen() -> None:
    miss = ask(make_harness(), "a", LONG)
    assert (miss.cause, miss.position, miss.expected_ids, miss.relative) == ("never_seen", 0, b"", None)


def test_a_prompt_that_is_wholly_cached_has_no_miss() -> None:
    harness = make_harness()
    ask(harness, "a", LONG)
    harness.submit("b", LONG, max_new_tokens=1)
    harness.run()
    assert harness.reuses["b"].miss is None


def test_a_prompt_that_goes_on_behind_all_that_is_cached_brings_what_was_never_seen() -> None:
    harness = make_harness()
    ask(harness, "a", LONG)
    miss = ask(harness, "b", [*LONG, 44, 45, 46])
    assert (miss.cause, miss.position, miss.relative) == ("never_seen", len(LONG), "a")


def test_a_fork_shows_both_sides_and_whose_the_other_is() -> None:
    harness = make_harness()
    ask(harness, "a", LONG)
    ask(harness, "unrelated", [1] * 20)
    forked = [*LONG[:18], 1, 2, *LONG[20:]]
    miss = ask(harness, "b", forked)
    assert (miss.cause, miss.position, miss.relative) == ("forked", 18, "a")
    assert bytes_to_ids(miss.expected_ids) == LONG[18:34]


def test_whose_the_other_side_is_is_known_of_the_end_of_a_prompt_in_a_page_that_somebody_had_before() -> None:
    harness = make_harness(num_pages=16, page_tokens=4)
    ask(harness, "before", [2] * 63)
    ask(harness, "a", LONG[:6])
    miss = ask(harness, "b", [*LONG[:4], 1, 2, 3])
    assert (miss.cause, miss.position, miss.relative) == ("forked", 4, "a")
    assert bytes_to_ids(miss.expected_ids) == LONG[4:6]


def test_what_was_evicted_is_told_with_the_request_that_needed_room() -> None:
    harness = make_harness(num_pages=16, page_tokens=4)
    ask(harness, "a", LONG)
    ask(harness, "big", [2] * 63)
    miss = ask(harness, "again", LONG)
    assert (miss.cause, miss.position) == ("evicted", 0)
    assert miss.evicted is not None
    assert miss.evicted.made_room_for == "big"
    assert miss.evicted.ago_s >= 0 <= miss.evicted.idle_s


def test_what_was_cut_at_its_end_by_eviction_is_found_up_to_there() -> None:
    harness = make_harness(num_pages=16, page_tokens=4)
    ask(harness, "a", LONG)
    ask(harness, "small", [2] * 32)
    miss = ask(harness, "again", LONG)
    assert miss.cause == "evicted"
    assert 0 < miss.position < len(LONG)


def test_the_end_of_a_prompt_that_did_not_fill_its_page_was_evicted_too() -> None:
    harness = make_harness(num_pages=16, page_tokens=4)
    ask(harness, "a", LONG[:6])
    ask(harness, "big", [2] * 59)
    miss = ask(harness, "again", [*LONG[:6], 1, 1, 1])
    assert (miss.cause, miss.position) == ("evicted", 4)
    assert miss.evicted is not None
    assert miss.evicted.made_room_for == "big"
    assert ask(harness, "other", [*LONG[:4], 1, 1, 1, 1, 1]).cause == "forked", "that parts before what has gone"


def test_behind_what_was_copied_from_a_running_request_its_own_tokens_are_the_other_side() -> None:
    harness = make_harness(config=SchedulerConfig(max_running=8, prefill_tokens=6, overlap=False))
    harness.submit("runs", LONG, max_new_tokens=1)
    harness.send_plan()
    harness.retire()
    miss = ask(harness, "parts", [*LONG[:5], 1, 2, 3, 4])
    assert (miss.cause, miss.position, miss.relative) == ("forked", 5, "runs")
    assert bytes_to_ids(miss.expected_ids)[0] == LONG[5]


def test_what_has_come_back_since_was_not_evicted() -> None:
    harness = make_harness(num_pages=16, page_tokens=4)
    ask(harness, "a", LONG)
    ask(harness, "big", [2] * 60)
    ask(harness, "again", LONG)
    assert ask(harness, "more", [*LONG, 1, 2, 3, 4, 5]).cause == "never_seen"


def test_a_flush_is_an_eviction_for_nobody() -> None:
    harness = make_harness()
    ask(harness, "a", LONG)
    harness.state.cache.flush()
    miss = ask(harness, "b", LONG)
    assert miss.cause == "evicted"
    assert miss.evicted is not None
    assert miss.evicted.made_room_for is None


def test_a_prefix_of_another_salt_is_told_as_such_behind_what_both_have_too() -> None:
    harness = make_harness()
    ask(harness, "a", LONG, salt="one")
    first = ask(harness, "b", LONG[:12], salt="two")
    assert (first.cause, first.namespace, first.position) == ("namespace", "salt", 0)
    later = ask(harness, "c", LONG, salt="two")
    assert (later.cause, later.namespace, later.position) == ("namespace", "salt", 12)
    assert ask(harness, "d", [1] * 40, salt="two").cause == "forked", "nobody has this"


def test_what_logprobs_are_wanted_of_is_bypassed() -> None:
    harness = make_harness()
    ask(harness, "a", LONG)
    assert ask(harness, "b", LONG, first=0).cause == "bypassed"


def test_a_page_that_another_one_computes_is_in_flight() -> None:
    # Waiting for it has an end: then both compute.
    harness = make_harness(num_pages=64, page_tokens=4, config=SchedulerConfig(max_running=8, prefill_tokens=8))
    harness.submit("a", LONG, max_new_tokens=1)
    harness.send_plan()
    harness.now_s += 60
    harness.submit("b", LONG, max_new_tokens=1)
    harness.send_plan()
    harness.run()
    miss = harness.reuses["b"].miss
    assert miss is not None
    assert (miss.cause, miss.relative) == ("in_flight", "a")


def test_a_shared_part_that_no_page_could_be_copied_for_was_too_short() -> None:
    harness = make_harness(num_pages=2, page_tokens=16)
    ask(harness, "a", LONG[:20])
    miss = ask(harness, "b", [*LONG[:19], 1, 2])
    assert (miss.cause, miss.position) == ("too_short", 16)


def test_nothing_is_explained_or_kept_unless_it_is_wished_for() -> None:
    harness = make_harness(config=SchedulerConfig(explain_misses=False))
    harness.submit("a", LONG)
    harness.run()
    reuse = harness.reuses["a"]
    assert (reuse.miss, reuse.idle_s) == (None, None)
    assert not harness.state.journal.is_kept


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_session_that_goes_on_is_a_return_and_a_new_one_is_not(is_changed: bool) -> None:
    harness = make_harness()
    belt = harness.state.belt
    assert belt is not None
    ask(harness, "a", LONG)
    assert belt.reading().expected_return_s is None
    ask(harness, "b", [*LONG[:20], 1, 1, 1] if is_changed else [*LONG, 1, 1, 1])
    assert (belt.reading().expected_return_s is None) == is_changed
