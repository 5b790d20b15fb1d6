"""Memory and time run short: who is sent back, who comes in again and when, what a step may hold."""

from __future__ import annotations

import random
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.admit import MAX_SKIPS
from scheduler.config import SchedulerConfig
from scheduler.draft import Draft, extend
from scheduler.leave import retract
from tests.scheduler.fake_runner import VOCABULARY, expected_output
from tests.scheduler.harness import Harness, make_harness
from wire.messages.encoding import bytes_to_ids
from wire.messages.to_tokenizer import Done, Refused


def prompt_of(seed: int, num_tokens: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(num_tokens)]


def step(harness: Harness) -> None:
    """Fill the pipeline, retire one step, check the ledger."""
    while harness.send_plan() is not None:
        pass
    if harness.sent:
        harness.retire()
    harness.check()


def run_checked(harness: Harness, *, max_steps: int = 20_000) -> int:
    """Run to the end with every invariant checked after each step; returns the number of steps."""
    for steps in range(max_steps):
        if not (harness.state.waiting or harness.state.running):
            return steps
        step(harness)
    raise AssertionError("no end")


def decoding(harness: Harness, *request_ids: str) -> None:
    """Step until all of these decode."""
    for _ in range(200):
        rows = {running.request.request_id for running in harness.state.decoding.values()}
        if rows.issuperset(request_ids):
            return
        step(harness)
    raise AssertionError(f"{request_ids} never decoded together")


@settings(max_examples=40, deadline=None)
@given(
    num_pages=st.integers(14, 60),
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 26)), min_size=4, max_size=16),
    learned=st.sampled_from([1, 8, 24, None]),
    overlap=st.booleans(),
)
def test_under_pressure_all_ends_well_with_few_retractions_for_each_request(
    num_pages: int, lengths: list[tuple[int, int]], learned: int | None, overlap: bool
) -> None:
    harness = make_harness(num_pages=num_pages, config=SchedulerConfig(max_running=8, overlap=overlap))
    if learned is not None:
        harness.expect_outputs_of(learned)
    for i, (prompt_tokens, max_new_tokens) in enumerate(lengths):
        harness.submit(f"r{i}", prompt_of(i, prompt_tokens), max_new_tokens=max_new_tokens)
    run_checked(harness)
    for i, (prompt_tokens, max_new_tokens) in enumerate(lengths):
        assert harness.outputs[f"r{i}"] == expected_output(prompt_of(i, prompt_tokens), max_new_tokens=max_new_tokens)
    retractions = [ended.num_retractions for ended in harness.terminal.values() if isinstance(ended, Done)]
    assert max(retractions) <= 6
    assert sum(retractions) <= 2 * len(lengths)


def test_a_pool_under_pressure_computes_little_twice() -> None:
    harness = make_harness(num_pages=150, config=SchedulerConfig(max_running=32))
    harness.expect_outputs_of(4)
    for i in range(60):
        harness.submit(f"r{i}", prompt_of(i, 20), max_new_tokens=60)
    run_checked(harness)
    retractions = harness.state.counters.retractions_total
    assert 0 < retractions <= 60, "about one for each finished request, though outputs are 15 times what was expected"
    # Prompts, and one token of output for each decode step, are computed once; what is beyond comes from retractions.
    again = harness.runner.prefilled_tokens + harness.runner.decoded_tokens - 60 * (20 + 59)
    assert again <= 0.3 * 60 * (20 + 59)


def test_lengths_that_are_known_cost_no_retraction() -> None:
    harness = make_harness(num_pages=150, config=SchedulerConfig(max_running=32))
    harness.expect_outputs_of(60)
    for i in range(40):
        harness.submit(f"r{i}", prompt_of(i, 20), max_new_tokens=60)
    run_checked(harness)
    assert harness.state.counters.retractions_total == 0


def test_the_victim_holds_many_pages_alone_and_shared_ones_do_not_count() -> None:
    harness = make_harness(num_pages=200, config=SchedulerConfig(max_running=8))
    shared = prompt_of(0, 160)
    harness.submit("oldest", shared, max_new_tokens=30)
    decoding(harness, "oldest")
    harness.submit("sharer", [*shared, 1, 2], max_new_tokens=30)
    harness.submit("owner", prompt_of(1, 60), max_new_tokens=30)
    harness.submit("small", prompt_of(2, 6), max_new_tokens=30)
    decoding(harness, "oldest", "sharer", "owner", "small")
    free = harness.state.cache.free_pages
    oldest = harness.state.running["oldest"]
    extend(harness.state, Draft(), oldest, (len(oldest.lease.page_ids) + free + 1) * 4)
    assert set(harness.state.running) == {"oldest", "sharer", "small"}


def test_of_two_with_about_as_many_pages_the_one_that_has_computed_less_in_them_goes() -> None:
    harness = make_harness(num_pages=200, config=SchedulerConfig(max_running=8, prefill_tokens=44))
    harness.submit("oldest", prompt_of(0, 8), max_new_tokens=30)
    harness.submit("done", prompt_of(1, 36), max_new_tokens=30)
    decoding(harness, "oldest", "done")
    harness.submit("begun", prompt_of(2, 44), max_new_tokens=30)
    harness.send_plan()
    assert harness.state.cache.own_pages(harness.state.running["begun"].lease) >= 11
    assert harness.state.running["begun"].computed_tokens == 0
    oldest = harness.state.running["oldest"]
    extend(harness.state, Draft(), oldest, (len(oldest.lease.page_ids) + harness.state.cache.free_pages + 1) * 4)
    assert "begun" not in harness.state.running


def test_a_retracted_request_finds_its_computed_pages_again_while_nobody_needs_them() -> None:
    harness = make_harness(num_pages=100)
    harness.submit("a", prompt_of(0, 40), max_new_tokens=40)
    decoding(harness, "a")
    for _ in range(10):
        step(harness)
    prefilled = harness.runner.prefilled_tokens
    retract(harness.state, harness.state.running["a"])
    run_checked(harness)
    assert harness.outputs["a"] == expected_output(prompt_of(0, 40), max_new_tokens=40)
    assert harness.runner.prefilled_tokens - prefilled <= 2 + harness.state.cache.page_tokens


def test_a_retracted_request_stays_out_until_what_it_is_expected_to_need_is_there() -> None:
    harness = make_harness(num_pages=24)
    harness.expect_outputs_of(30)
    for request_id in ("old", "young"):
        harness.submit(request_id, prompt_of(ord(request_id[0]), 20), max_new_tokens=40)
    young = harness.state.waiting.get("young")
    decoding(harness, "old")
    assert young is not None
    if "young" in harness.state.running:
        retract(harness.state, harness.state.running["young"])
    for _ in range(10):
        step(harness)
        assert "young" not in harness.state.running, "it would only be sent back again"
    run_checked(harness)
    assert harness.terminal["young"].reason == "length"


def test_a_large_request_is_passed_over_a_bounded_number_of_times() -> None:
    harness = make_harness(num_pages=40, config=SchedulerConfig(max_running=4))
    harness.expect_outputs_of(8)
    harness.submit("first", prompt_of(0, 40), max_new_tokens=8)
    step(harness)
    harness.submit("large", prompt_of(1, 120), max_new_tokens=8)
    passed: set[str] = set()
    for i in range(200):
        harness.submit(f"small{i}", prompt_of(2 + i, 40), max_new_tokens=8)
        step(harness)
        if "large" in harness.state.running or "large" in harness.terminal:
            break
        passed |= harness.state.running.keys() - {"first"}
    else:
        raise AssertionError("it waits for ever")
    assert 0 < len(passed) <= MAX_SKIPS, "so many go past it, then pages are kept until it fits"
    run_checked(harness)
    assert harness.outputs["large"] == expected_output(prompt_of(1, 120), max_new_tokens=8)


def test_a_large_request_that_nobody_passed_keeps_no_pages_from_a_small_one_however_long_it_waits() -> None:
    harness = make_harness(num_pages=60, config=SchedulerConfig(max_running=4, overtake_seconds=1e9))
    harness.expect_outputs_of(60)
    harness.submit("first", prompt_of(0, 80), max_new_tokens=60)
    step(harness)
    harness.submit("large", prompt_of(1, 180), max_new_tokens=8)
    for _ in range(2 * MAX_SKIPS):
        step(harness)
    harness.submit("small", prompt_of(2, 8), max_new_tokens=2)
    step(harness)
    assert set(harness.state.running) == {"first", "small"}
    run_checked(harness)
    assert harness.outputs["large"] == expected_output(prompt_of(1, 180), max_new_tokens=8)


def test_nobody_is_leased_pages_in_vain_in_any_step(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = make_harness(num_pages=60, config=SchedulerConfig(max_running=8, overtake_seconds=1e9))
    harness.expect_outputs_of(60)
    harness.submit("before", prompt_of(0, 80), max_new_tokens=1)
    harness.run()
    harness.submit("first", prompt_of(1, 80), max_new_tokens=60)
    step(harness)
    cache = harness.state.cache
    lease = Mock(wraps=cache.lease)
    monkeypatch.setattr(cache, "lease", lease)
    for i in range(20):
        harness.submit(f"large{i}", prompt_of(0, 80) + prompt_of(2 + i, 32), max_new_tokens=8)
    for _ in range(10):
        step(harness)
    assert set(harness.state.running) == {"first"}
    assert cache.free_pages + cache.evictable_pages > 8 + 2, (
        "what each lacks is there, but is in part what it would find"
    )
    lease.assert_not_called()
    run_checked(harness)
    assert lease.call_count == 20


def test_no_more_than_so_many_pass_a_large_request_in_one_step_either() -> None:
    harness = make_harness(num_pages=60, config=SchedulerConfig(max_running=64, overtake_seconds=1e9))
    harness.expect_outputs_of(2)
    harness.submit("first", prompt_of(0, 20), max_new_tokens=60)
    step(harness)
    harness.submit("large", prompt_of(1, 224), max_new_tokens=12)
    for i in range(30):
        harness.submit(f"small{i}", [i], max_new_tokens=2)
    harness.send_plan()
    assert sum(request_id.startswith("small") for request_id in harness.state.running) == MAX_SKIPS
    run_checked(harness)


def test_pages_that_are_kept_for_one_are_not_given_to_later_ones_while_others_grow() -> None:
    config = SchedulerConfig(max_running=8, overtake_seconds=0.0, overtake_tokens=0, policy="fcfs")
    harness = make_harness(num_pages=40, config=config)
    harness.expect_outputs_of(30)
    for i in range(2):
        harness.submit(f"running{i}", prompt_of(i, 20), max_new_tokens=60)
    decoding(harness, "running0", "running1")
    harness.submit("large", prompt_of(5, 100), max_new_tokens=8)
    order = []
    for i in range(300):
        harness.submit(f"small{i}", prompt_of(10 + i, 4), max_new_tokens=2)
        step(harness)
        order += [request_id for request_id in harness.state.running if request_id not in order]
        if "large" in order:
            break
    later = order[: order.index("large")]
    assert len([request_id for request_id in later if request_id.startswith("small")]) <= 17


@pytest.mark.parametrize("num_pages", [3, 4, 8])
def test_a_pool_for_one_request_runs_one_after_the_other(num_pages: int) -> None:
    harness = make_harness(num_pages=num_pages)
    whole = num_pages * 4
    for i in range(4):
        harness.submit(f"r{i}", prompt_of(i, whole - 5), max_new_tokens=5)
    run_checked(harness)
    for i in range(4):
        assert harness.outputs[f"r{i}"] == expected_output(prompt_of(i, whole - 5), max_new_tokens=5)
    harness.submit("more", prompt_of(9, whole - 4), max_new_tokens=5)
    refused = harness.terminal["more"]
    assert isinstance(refused, Refused)
    assert str(whole) in refused.message


def test_a_step_keeps_to_its_time_also_deep_in_a_long_prompt() -> None:
    config = SchedulerConfig(max_running=4, decode_step_ms=100)
    harness = make_harness(num_pages=4000, config=config)
    harness.runner.seconds_per_context_token = 4e-7
    harness.submit("short", prompt_of(0, 8), max_new_tokens=400)
    decoding(harness, "short")
    harness.submit("long", prompt_of(1, 6000), max_new_tokens=1)
    chunks: list[int] = []
    times: list[float] = []
    while "long" not in harness.terminal and len(chunks) < 500:
        while harness.send_plan() is not None:
            pass
        began_s = harness.now_s
        chunks.append(sum(len(bytes_to_ids(chunk.token_ids)) for chunk in harness.sent[0].chunks))
        harness.retire()
        times.append(harness.now_s - began_s)
    assert sorted(times[20:])[len(times[20:]) // 2] == pytest.approx(0.1, rel=0.15)
    assert max(times[20:]) < 0.15
    assert chunks[10] > 2 * chunks[-3], "a token deep in the prompt costs more, so a step holds fewer"


@pytest.mark.parametrize("num_shared", [1, 5, 10, 13])
@pytest.mark.parametrize("max_new_tokens", [1, 3])
def test_a_request_as_large_as_the_pool_runs_also_where_a_part_of_a_page_could_be_copied(
    num_shared: int, max_new_tokens: int
) -> None:
    harness = make_harness(num_pages=4)
    harness.submit("before", prompt_of(1, num_shared + 1), max_new_tokens=1)
    harness.run()
    prompt = prompt_of(1, num_shared) + prompt_of(2, 16 - max_new_tokens - num_shared)
    harness.submit("large", prompt, max_new_tokens=max_new_tokens)
    harness.run()
    harness.check()
    ended = harness.terminal["large"]
    assert isinstance(ended, Done) and ended.reason == "length"
    assert harness.outputs["large"] == expected_output(prompt, max_new_tokens=max_new_tokens)
