from __future__ import annotations

import numpy as np
import pytest

from scheduler import intake
from scheduler.config import SchedulerConfig
from tests.scheduler.fake_runner import expected_logprobs, expected_output
from tests.scheduler.harness import CLIENT, DOCUMENT, make_harness


def test_only_pages_whose_step_has_retired_can_be_found() -> None:
    harness = make_harness(config=SchedulerConfig(prefill_tokens=20))
    harness.submit("a", DOCUMENT[:60])
    namespace = next(iter(harness.state.waiting)).namespace
    document = np.array(DOCUMENT[:60], np.int32)
    found = []
    for _ in range(3):
        harness.send_plan()
        found.append(harness.state.cache.match(namespace, document))
        harness.retire()
    assert found == [0, 20, 40]


def test_zero_new_tokens_computes_the_prompt_and_leaves_it_cached() -> None:
    harness = make_harness()
    harness.submit("a", DOCUMENT[:40], max_new_tokens=0)
    harness.run()
    assert harness.terminal["a"].reason == "length"
    assert "a" not in harness.outputs
    harness.submit("b", [*DOCUMENT[:40], 1])
    harness.run()
    assert harness.reuses["b"].cached_tokens == 40


def test_the_next_turn_reuses_prompt_and_answer_to_the_token() -> None:
    harness = make_harness()
    harness.submit("a", DOCUMENT[:21], max_new_tokens=10)
    harness.run()
    turn_2 = DOCUMENT[:21] + harness.outputs["a"] + [1, 2, 3]
    harness.submit("b", turn_2)
    harness.run()
    assert harness.reuses["b"].cached_tokens == 21 + 10 - 1, "the last token of an answer is never computed"
    assert harness.outputs["b"] == expected_output(turn_2, max_new_tokens=4)


def test_a_forked_page_is_copied_and_only_the_difference_is_computed() -> None:
    harness = make_harness(page_tokens=16)
    harness.submit("a", DOCUMENT[:48], max_new_tokens=1)
    harness.run()
    before = harness.runner.prefilled_tokens
    forked = [*DOCUMENT[:45], 49, 48]
    harness.submit("b", forked)
    harness.run()
    assert harness.reuses["b"].cached_tokens == 45
    assert harness.reuses["b"].copied_tokens == 13
    assert harness.runner.prefilled_tokens - before == 2
    assert harness.outputs["b"] == expected_output(forked, max_new_tokens=4)


def test_another_salt_finds_nothing_and_the_same_salt_finds_all() -> None:
    harness = make_harness()
    for request_id, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        harness.submit(request_id, DOCUMENT[:33], salt=salt)
        harness.run()
    assert harness.reuses["b"].cached_tokens == 0
    assert harness.reuses["c"].cached_tokens == 32


def test_simultaneous_questions_on_one_new_document_compute_it_once() -> None:
    harness = make_harness(num_pages=400, config=SchedulerConfig(max_running=32, prefill_tokens=64))
    for i in range(16):
        harness.submit(f"r{i}", [*DOCUMENT, i, i + 1, i + 2])
    harness.run()
    assert harness.runner.prefilled_tokens <= len(DOCUMENT) + 16 * (3 + harness.state.cache.page_tokens)


def test_followers_go_on_by_themselves_when_their_leader_is_cancelled() -> None:
    harness = make_harness(num_pages=400, config=SchedulerConfig(max_running=32, prefill_tokens=64))
    for i in range(4):
        harness.submit(f"r{i}", [*DOCUMENT, i])
    harness.send_plan()
    (leader,) = harness.state.running
    harness.take(intake.cancel(harness.state, CLIENT, leader))
    harness.run()
    others = {f"r{i}" for i in range(4)} - {leader}
    assert {harness.terminal[request_id].reason for request_id in others} == {"length"}


def test_a_broken_row_ends_alone_and_leaves_nothing_in_the_tree() -> None:
    harness = make_harness()
    harness.submit("bad", DOCUMENT[:20])
    harness.send_plan()
    harness.submit("good", [9] * 10)
    harness.runner.broken_rows = {harness.state.running["bad"].row}
    harness.run()
    assert harness.terminal["bad"].reason == "broken"
    assert harness.outputs["good"] == expected_output([9] * 10, max_new_tokens=4)
    harness.runner.broken_rows = set()
    harness.submit("again", DOCUMENT[:20])
    harness.run()
    assert harness.reuses["again"].cached_tokens == 0


def test_a_flush_leaves_requests_in_flight_alone_and_nothing_of_them_in_the_new_tree() -> None:
    harness = make_harness()
    harness.submit("a", DOCUMENT[:20], max_new_tokens=6)
    harness.send_plan()
    harness.retire()
    harness.state.cache.flush()
    harness.run()
    assert harness.outputs["a"] == expected_output(DOCUMENT[:20], max_new_tokens=6)
    harness.submit("b", DOCUMENT[:20])
    harness.run()
    assert harness.reuses["b"].cached_tokens == 0


def test_several_answers_to_one_prompt_compute_it_once() -> None:
    harness = make_harness(num_pages=400, page_tokens=4, config=SchedulerConfig(max_running=8, prefill_tokens=64))
    for i in range(6):
        harness.submit(f"r_{i}", DOCUMENT[:202], max_new_tokens=4)
    harness.run()
    assert all(harness.outputs[f"r_{i}"] == harness.outputs["r_0"] for i in range(6))
    assert harness.runner.prefilled_tokens == 202 + 5, "each follower computes the last token"
    assert [harness.reuses[f"r_{i}"].cached_tokens for i in range(6)] == [0] + [201] * 5


@pytest.mark.parametrize("overlap", [True, False])
def test_branches_that_start_together_compute_what_they_share_once_to_the_token(overlap: bool) -> None:
    config = SchedulerConfig(max_running=8, prefill_tokens=64, overlap=overlap)
    harness = make_harness(num_pages=100, page_tokens=16, config=config)
    branches = [[*DOCUMENT[:60], i, 49 - i] for i in range(6)]
    for i, branch in enumerate(branches):
        harness.submit(f"r_{i}", branch, max_new_tokens=20)
    harness.run()
    assert harness.runner.prefilled_tokens == 60 + 6 * 2
    for i, branch in enumerate(branches):
        assert harness.outputs[f"r_{i}"] == expected_output(branch, max_new_tokens=20)
    harness.check()


def test_branches_go_on_from_a_leader_that_is_cancelled_as_far_as_it_has_come() -> None:
    config = SchedulerConfig(max_running=8, prefill_tokens=56, overlap=False)
    harness = make_harness(num_pages=100, page_tokens=16, config=config)
    for i in range(3):
        harness.submit(f"r_{i}", [*DOCUMENT[:60], i], max_new_tokens=20)
    harness.send_plan()
    harness.retire()
    harness.take(intake.cancel(harness.state, CLIENT, "r_0"))
    harness.run()
    assert harness.reuses["r_1"].cached_tokens == 56
    assert harness.reuses["r_2"].cached_tokens == 60, "it follows the one that took over"
    harness.check()


@pytest.mark.parametrize(("start", "cached"), [(0, 0), (1, 0), (50, 49), (99, 98), (300, 99)])
def test_prompt_logprobs_bypass_the_cache_from_where_they_are_wanted(start: int, cached: int) -> None:
    harness = make_harness(config=SchedulerConfig(prefill_tokens=16))
    harness.submit("warm", DOCUMENT[:100], max_new_tokens=1)
    harness.run()
    harness.submit("scored", DOCUMENT[:100], max_new_tokens=0, prompt_logprobs_from=start)
    harness.run()
    assert harness.prompt_logprobs["scored"] == expected_logprobs(DOCUMENT[:100], start)
    assert harness.state.counters.cached_tokens_total == cached
    assert harness.state.counters.bypassed_tokens_total == 99 - cached
    assert harness.terminal["scored"].reason == "length"
    harness.check()


def test_a_request_that_must_compute_a_prefix_itself_does_not_wait_for_another_to_do_it() -> None:
    harness = make_harness(config=SchedulerConfig(prefill_tokens=32))
    harness.submit("leader", DOCUMENT[:100])
    harness.submit("follower", DOCUMENT[:12])
    harness.submit("scored", DOCUMENT[:12], prompt_logprobs_from=0)
    harness.send_plan()
    assert set(harness.state.running) == {"leader", "scored"}
