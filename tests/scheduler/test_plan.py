from __future__ import annotations

import pytest

from scheduler.config import SchedulerConfig
from scheduler.cost import StepCost
from scheduler.settle import OutOfStep, settle
from tests.scheduler.fake_runner import expected_output
from tests.scheduler.harness import DOCUMENT, chunk_lengths, make_harness
from wire.messages.encoding import bytes_to_ids, encode
from wire.messages.from_runner import StepResult


def test_a_request_is_prefilled_decoded_and_ended_once() -> None:
    harness = make_harness()
    harness.submit("a", DOCUMENT[:10], max_new_tokens=5)
    harness.run()
    assert harness.outputs["a"] == expected_output(DOCUMENT[:10], max_new_tokens=5)
    assert harness.terminal["a"].reason == "length"
    assert harness.runner.decoded_tokens == 4, "a known end costs no extra step"


def test_a_stop_token_ends_a_request_and_the_token_computed_beyond_it_is_dropped() -> None:
    harness = make_harness()
    output = expected_output(DOCUMENT[:10], max_new_tokens=5)
    harness.submit("a", DOCUMENT[:10], max_new_tokens=5, stop_token_ids=(output[1],))
    harness.run()
    assert harness.outputs["a"] == output[: output.index(output[1]) + 1]
    assert harness.terminal["a"].reason == "stop"
    assert harness.terminal["a"].matched_token_id == output[1]


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
