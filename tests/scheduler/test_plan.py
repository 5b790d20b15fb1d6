from __future__ import annotations

import numpy as np
import pytest

from radix.cache import Lease, OutOfPages, PageId, PrefixCache
from scheduler import intake
from scheduler.config import SchedulerConfig
from scheduler.cost import StepCost
from scheduler.leave import retract
from scheduler.settle import OutOfStep, settle
from tests.scheduler.fake_runner import expected_logprobs, expected_output
from tests.scheduler.harness import CLIENT, make_harness
from wire.messages.encoding import bytes_to_ids, encode
from wire.messages.from_runner import StepResult
from wire.messages.to_runner import StepPlan

DOCUMENT = [(i * i + 3) % 50 for i in range(400)]


def chunk_lengths(plan: StepPlan) -> list[int]:
    return [len(bytes_to_ids(chunk.token_ids)) for chunk in plan.chunks]


def test_a_request_is_prefilled_decoded_and_ended_once() -> None:
    harness = make_harness()
    harness.submit("a", DOCUMENT[:10], max_new_tokens=5)
    harness.run()
    assert harness.outputs["a"] == expected_output(DOCUMENT[:10], max_new_tokens=5)
    assert harness.terminal["a"].reason == "length"
    assert harness.runner.decoded_tokens == 4, "a known end costs no extra step"


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


def test_a_row_retracted_in_the_plan_that_admits_it_never_reaches_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = make_harness(num_pages=400, config=SchedulerConfig(max_running=8))
    harness.submit("old", DOCUMENT[:50])
    harness.submit("young", [9] * 80)
    extend = PrefixCache.extend
    refusals = iter([True])

    def extend_but_once(cache: PrefixCache, lease: Lease, num_tokens: int) -> list[PageId]:
        if next(refusals, False):
            raise OutOfPages(needed=1, available=0)
        return extend(cache, lease, num_tokens)

    monkeypatch.setattr(PrefixCache, "extend", extend_but_once)
    plan = harness.send_plan()
    assert plan is not None
    assert [admission.request_id for admission in plan.admissions] == ["old"]
    harness.run()
    assert harness.outputs["young"] == expected_output([9] * 80, max_new_tokens=4)


def test_a_request_that_no_longer_fits_a_pool_with_quarantined_pages_ends_with_an_error() -> None:
    harness = make_harness(num_pages=8, page_tokens=4)
    harness.state.cache.core.ledger.set_aside({PageId(0): "test"})
    harness.submit("a", [1] * 31, max_new_tokens=1)
    harness.run()
    ended = harness.terminal["a"]
    assert ended.reason == "broken"
    assert "quarantined" in ended.message


def test_a_stop_token_ends_a_request_and_the_token_computed_beyond_it_is_dropped() -> None:
    harness = make_harness()
    output = expected_output(DOCUMENT[:10], max_new_tokens=5)
    harness.submit("a", DOCUMENT[:10], max_new_tokens=5, stop_token_ids=(output[1],))
    harness.run()
    assert harness.outputs["a"] == output[: output.index(output[1]) + 1]
    assert harness.terminal["a"].reason == "stop"
    assert harness.terminal["a"].matched_token_id == output[1]


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


def test_a_decode_row_does_not_wait_for_a_long_prompt() -> None:
    harness = make_harness(num_pages=400, config=SchedulerConfig(max_running=4))
    harness.submit("short", DOCUMENT[:8], max_new_tokens=20)
    harness.send_plan()
    harness.retire()
    harness.submit("long", DOCUMENT, max_new_tokens=1)
    plan = harness.send_plan()
    assert plan is not None
    assert len(bytes_to_ids(plan.decodes)) == 1
    assert 0 < sum(chunk_lengths(plan)) < len(DOCUMENT), "the prompt is cut to the time budget"


def test_prefill_goes_on_where_a_decode_step_alone_takes_longer_than_the_budget() -> None:
    harness = make_harness(num_pages=400, config=SchedulerConfig(max_running=4))
    harness.submit("short", DOCUMENT[:8], max_new_tokens=20)
    harness.send_plan()
    harness.retire()
    harness.state.cost = StepCost(base_s=1.0, decode_s=0.0, token_s=0.01, context_s=0.0)
    harness.submit("long", DOCUMENT, max_new_tokens=1)
    plan = harness.send_plan()
    assert plan is not None
    assert chunk_lengths(plan) == [100], "as long as the second that decode takes"


def test_one_step_prefills_several_requests_and_the_one_with_least_left_goes_first() -> None:
    harness = make_harness(num_pages=400, config=SchedulerConfig(max_running=8, prefill_tokens=100))
    harness.submit("long", [1, *DOCUMENT[:300]])
    harness.submit("short", [2, *DOCUMENT[:20]])
    harness.submit("middle", [3, *DOCUMENT[:50]])
    plan = harness.send_plan()
    assert plan is not None
    assert chunk_lengths(plan) == [21, 51, 28]


def test_one_step_prefills_first_what_has_the_higher_priority_until_others_are_overdue() -> None:
    config = SchedulerConfig(max_running=8, prefill_tokens=100, overtake_seconds=5.0)
    harness = make_harness(num_pages=400, config=config)
    harness.submit("short", [2, *DOCUMENT[:120]])
    harness.submit("urgent", [1, *DOCUMENT[:300]], priority=1)
    shares = []
    for now_s in (0.0, 1.0, 6.0):
        harness.now_s = now_s
        plan = harness.send_plan()
        assert plan is not None
        name_of = {running.row: name for name, running in harness.state.running.items()}
        shares.append({name_of[chunk.row]: len(chunk.token_ids) // 4 for chunk in plan.chunks})
        harness.retire()
    assert shares == [{"urgent": 100}, {"urgent": 100}, {"short": 100}]


def test_the_longest_cached_prefix_goes_first() -> None:
    harness = make_harness(num_pages=400, config=SchedulerConfig(max_running=1))
    harness.submit("warm", DOCUMENT[:100], max_new_tokens=1)
    harness.run()
    harness.submit("cold", [9] * 30)
    harness.submit("hot", DOCUMENT[:100] + [1] * 30)
    harness.send_plan()
    assert list(harness.state.running) == ["hot"]


def test_a_cold_request_is_overtaken_for_a_bounded_amount_of_work_only() -> None:
    config = SchedulerConfig(max_running=1, overtake_tokens=60, overtake_seconds=1e9)
    harness = make_harness(num_pages=400, config=config)
    harness.submit("warm", DOCUMENT[:100], max_new_tokens=1)
    harness.run()
    harness.submit("cold", [9] * 30)
    order = []
    for i in range(20):
        harness.submit(f"hot{i}", DOCUMENT[:100] + [i] * 10, max_new_tokens=1)
        harness.send_plan()
        order += list(harness.state.running)
        harness.retire()
    assert order.index("cold") in range(1, 8)
    assert harness.state.counters.worst_displacement_tokens <= 60 + 14


def test_no_request_is_overtaken_for_longer_than_the_stated_time() -> None:
    config = SchedulerConfig(max_running=1, overtake_tokens=10**9, overtake_seconds=3.0)
    harness = make_harness(num_pages=400, config=config)
    harness.submit("warm", DOCUMENT[:100], max_new_tokens=1)
    harness.run()
    harness.submit("cold", [9] * 30)
    for i in range(8):
        harness.submit(f"hot{i}", DOCUMENT[:100] + [i] * 10, max_new_tokens=1)
        harness.send_plan()
        harness.now_s += 1.0
        harness.retire()
    assert "cold" in harness.terminal


def test_when_pages_run_out_a_younger_request_is_sent_back_and_still_answers_right() -> None:
    harness = make_harness(num_pages=12, page_tokens=4)
    harness.expect_outputs_of(1)
    for i in range(3):
        harness.submit(f"r{i}", [i] * 8, max_new_tokens=24)
    harness.run()
    assert harness.state.counters.retractions_total > 0
    for i in range(3):
        assert harness.outputs[f"r{i}"] == expected_output([i] * 8, max_new_tokens=24)
    assert harness.terminal["r0"].num_retractions == 0, "the oldest is never a victim"


def test_a_retracted_request_with_penalties_comes_back_with_its_ids() -> None:
    harness = make_harness(num_pages=12, page_tokens=4)
    harness.expect_outputs_of(1)
    for i in range(3):
        harness.submit(f"r{i}", DOCUMENT[40 * i : 40 * i + 8], max_new_tokens=24, repetition_penalty=1.2)
    harness.run()
    assert harness.state.counters.retractions_total > 0
    for i in range(3):
        assert harness.outputs[f"r{i}"] == expected_output(DOCUMENT[40 * i : 40 * i + 8], max_new_tokens=24)


@pytest.mark.parametrize(
    ("params", "has_prompt", "has_output"),
    [
        ({}, False, False),
        ({"min_new_tokens": 3}, False, False),
        ({"frequency_penalty": 0.5}, False, True),
        ({"presence_penalty": 0.5}, False, True),
        ({"repetition_penalty": 1.5}, True, True),
    ],
)
def test_an_admission_carries_old_ids_only_when_sampling_looks_at_them(
    params: dict[str, float], has_prompt: bool, has_output: bool
) -> None:
    harness = make_harness()
    harness.submit("a", DOCUMENT[:10], max_new_tokens=8, **params)
    first = harness.send_plan()
    harness.retire()
    retract(harness.state, harness.state.running["a"])
    again = harness.send_plan()
    output = harness.outputs["a"]
    assert len(output) == 1
    for plan, known in ((first, []), (again, output)):
        (admission,) = plan.admissions
        assert admission.num_prompt_tokens == 10
        assert bytes_to_ids(admission.prompt_ids) == (DOCUMENT[:10] if has_prompt else [])
        assert bytes_to_ids(admission.output_ids) == (known if has_output else [])


def test_a_retracted_request_keeps_its_reuse_figures_of_the_first_scheduling() -> None:
    harness = make_harness(num_pages=12, page_tokens=4)
    harness.expect_outputs_of(1)
    for i in range(3):
        harness.submit(f"r{i}", [i] * 8, max_new_tokens=24)
    harness.run()
    assert harness.state.counters.prompt_tokens_total == 24
    assert harness.state.counters.cached_tokens_total == 0, "recomputation after a retraction is no hit"


def test_a_request_that_fills_the_whole_pool_runs() -> None:
    harness = make_harness(num_pages=8, page_tokens=4)
    harness.submit("warm", [7] * 20)
    harness.run()
    harness.submit("whole", DOCUMENT[:20], max_new_tokens=12)
    harness.run()
    assert harness.outputs["whole"] == expected_output(DOCUMENT[:20], max_new_tokens=12)


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


def test_a_result_out_of_step_is_an_error() -> None:
    harness = make_harness()
    harness.submit("a", [1, 2, 3])
    harness.send_plan()
    with pytest.raises(OutOfStep):
        settle(harness.state, StepResult(step=1, token_ids=b""))


def test_plans_are_deltas_a_decode_step_of_many_rows_is_a_few_bytes_a_row() -> None:
    harness = make_harness(num_pages=9000, config=SchedulerConfig(max_running=128))
    for i in range(128):
        harness.submit(f"r{i}", [i % 50, i // 50, *DOCUMENT[:50]], max_new_tokens=200)
    for _ in range(400):
        plan = harness.send_plan()
        if plan is not None and len(bytes_to_ids(plan.decodes)) == 128:
            assert len(encode(plan)) < 128 * 4 + 1000
            return
        harness.retire()
    raise AssertionError("the rows never decoded together")


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


def test_a_retracted_request_tells_each_prompt_logprob_once() -> None:
    harness = make_harness(config=SchedulerConfig(prefill_tokens=16))
    harness.submit("a", DOCUMENT[:60], prompt_logprobs_from=5)
    harness.send_plan()
    harness.send_plan()
    harness.retire()
    retract(harness.state, harness.state.running["a"])
    harness.run()
    assert harness.prompt_logprobs["a"] == expected_logprobs(DOCUMENT[:60], 5)
    assert harness.outputs["a"] == expected_output(DOCUMENT[:60], max_new_tokens=4)


def test_a_request_that_must_compute_a_prefix_itself_does_not_wait_for_another_to_do_it() -> None:
    harness = make_harness(config=SchedulerConfig(prefill_tokens=32))
    harness.submit("leader", DOCUMENT[:100])
    harness.submit("follower", DOCUMENT[:12])
    harness.submit("scored", DOCUMENT[:12], prompt_logprobs_from=0)
    harness.send_plan()
    assert set(harness.state.running) == {"leader", "scored"}
