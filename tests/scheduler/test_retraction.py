from __future__ import annotations

import pytest

from radix.cache import Lease, OutOfPages, PageId, PrefixCache
from scheduler.admit import LOOK
from scheduler.config import SchedulerConfig
from scheduler.leave import retract
from tests.scheduler.fake_runner import expected_logprobs, expected_output
from tests.scheduler.harness import DOCUMENT, Harness, make_harness
from wire.messages.encoding import bytes_to_ids


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


def crowded() -> Harness:
    """Three requests that don't fit together have run."""
    harness = make_harness(num_pages=12, page_tokens=4)
    harness.expect_outputs_of(1)
    for i in range(3):
        harness.submit(f"r{i}", [i] * 8, max_new_tokens=24)
    harness.run()
    return harness


def test_when_pages_run_out_a_younger_request_is_sent_back_and_still_answers_right() -> None:
    harness = crowded()
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
    harness = crowded()
    assert harness.state.counters.prompt_tokens_total == 24
    assert harness.state.counters.cached_tokens_total == 0, "recomputation after a retraction is no hit"


def test_a_request_that_fills_the_whole_pool_runs() -> None:
    harness = make_harness(num_pages=8, page_tokens=4)
    harness.submit("warm", [7] * 20)
    harness.run()
    harness.submit("whole", DOCUMENT[:20], max_new_tokens=12)
    harness.run()
    assert harness.outputs["whole"] == expected_output(DOCUMENT[:20], max_new_tokens=12)


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


def test_of_those_that_wait_only_what_no_longer_fits_ends_with_an_error() -> None:
    harness = make_harness(num_pages=8, page_tokens=4)
    harness.state.cache.core.ledger.set_aside({PageId(0): "test"})
    harness.submit("small", [2] * 9)
    for i in range(LOOK):
        harness.submit(f"large{i}", [i] * 31, max_new_tokens=1, priority=1)
    harness.run()
    assert harness.terminal["small"].reason == "length"
    assert {harness.terminal[f"large{i}"].reason for i in range(LOOK)} == {"broken"}


@pytest.mark.parametrize("page_tokens", [1, 4, 16])
def test_where_all_that_runs_goes_back_to_the_queue_the_next_step_is_planned_at_once(page_tokens: int) -> None:
    config = SchedulerConfig(max_running=2, prefill_tokens=3, overlap=False)
    harness = make_harness(num_pages=64 // page_tokens, page_tokens=page_tokens, config=config)
    prompt = DOCUMENT[:50]
    harness.submit("cached", prompt, max_new_tokens=1)
    harness.run()
    # It computes the prompt again beside the cached pages, which it pins as it goes: both don't fit.
    harness.submit("scoring", prompt, max_new_tokens=1, prompt_logprobs_from=0)
    harness.run()
    assert harness.terminal["scoring"].num_retractions == 1
    assert harness.prompt_logprobs["scoring"] == expected_logprobs(prompt, 1)
