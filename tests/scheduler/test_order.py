"""The order in which waiting requests are tried, against its definition."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from scheduler import intake
from scheduler.config import SchedulerConfig
from scheduler.elevator import Elevator
from scheduler.leave import retract
from scheduler.overtaking import Overtaking
from scheduler.policy import GRANTED_REQUESTS, in_order
from scheduler.request import Request
from tests.scheduler.harness import CLIENT, Harness, make_harness, run_past_a_silent_leader
from tests.scheduler.test_properties import SchedulerMachine

SYSTEM = [(i * i + 3) % 50 for i in range(40)]
DOCUMENT = Random(7).choices(range(50), k=400)


class OrderMachine(SchedulerMachine):
    """The random life of a scheduler; nobody stalls."""

    @rule()
    def pass_time(self) -> None:  # type: ignore[override]
        self.harness.now_s += 0.1

    @invariant()
    def the_queue_is_in_the_order_of_the_definition(self) -> None:
        if not hasattr(self, "harness"):
            return
        state = self.harness.state
        for request in state.waiting.leaders.drop(now_s=self.harness.now_s, step=state.next_step):
            if state.waiting.get(request.request_id) is request:
                state.waiting.enlist(request)
        listed = [request for request in state.waiting if not state.waiting.is_put_off(request)]
        free = [request for request in listed if not self._is_following(request)]
        assert list(state.waiting.by_age()) == sorted(free, key=lambda each: (not each.num_retractions, each.arrival))
        by_policy = list(state.waiting.by_policy())
        if state.config.policy == "longest-prefix":
            assert by_policy == sorted(free, key=lambda each: (-each.priority, -self._matched(each), each.arrival))
        elif state.config.policy == "fcfs":
            assert by_policy == sorted(free, key=lambda each: (-each.priority, each.arrival))
        else:
            assert sorted(each.arrival for each in by_policy) == sorted(each.arrival for each in free)

    def _matched(self, request: Request) -> int:
        ids = request.token_ids[: max(request.reusable_tokens, 0)]
        return self.harness.state.cache.match_pages(request.namespace, ids)

    def _is_following(self, request: Request) -> bool:
        state = self.harness.state
        shared = self._matched(request) + state.cache.page_tokens
        if shared > request.reusable_tokens:
            return False
        return any(
            running.computed_tokens < running.target_tokens
            and running.target_tokens >= shared
            and running.lease.generation == state.cache.core.generation
            and running.request.namespace == request.namespace
            and np.array_equal(running.request.token_ids[:shared], request.token_ids[:shared])
            for running in state.running.values()
        )


OrderMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_the_order_is_that_of_the_definition = OrderMachine.TestCase


def tried(harness: Harness) -> list[str]:
    return [request.request_id for request, _ in in_order(harness.state, now_s=harness.now_s)]


def test_the_higher_priority_goes_first_then_the_longer_prefix_then_the_older() -> None:
    harness = make_harness(num_pages=400)
    harness.submit("warm", SYSTEM)
    harness.run()
    harness.submit("old", [1] * 20)
    harness.submit("hot", [*SYSTEM, 1, 2, 3, 4])
    harness.submit("hot too", [*SYSTEM, 2, 2, 3, 4])
    harness.submit("urgent", [2] * 20, priority=1)
    harness.submit("least", [*SYSTEM, 3], priority=-1)
    assert tried(harness) == ["urgent", "hot", "hot too", "old", "least"]


def test_first_come_first_served_knows_priorities_and_no_prefixes() -> None:
    harness = make_harness(num_pages=400, config=SchedulerConfig(policy="fcfs"))
    harness.submit("warm", SYSTEM)
    harness.run()
    harness.submit("old", [1] * 20)
    harness.submit("hot", [*SYSTEM, 1, 2, 3, 4])
    harness.submit("urgent", [2] * 20, priority=1)
    assert tried(harness) == ["urgent", "old", "hot"]


@given(
    kinds=st.lists(st.sampled_from(["hot", "cold", "urgent", "step"]), max_size=60),
    max_running=st.integers(1, 3),
    overtake_tokens=st.sampled_from([0, 30, 100, 65536]),
)
@settings(max_examples=60, deadline=None)
def test_nobody_is_overtaken_more_than_the_bound_says(kinds: list[str], max_running: int, overtake_tokens: int) -> None:
    config = SchedulerConfig(max_running=max_running, overtake_tokens=overtake_tokens, overtake_seconds=1e9)
    harness = make_harness(num_pages=4000, config=config)
    harness.submit("warm", SYSTEM, max_new_tokens=1)
    harness.run()
    for i, kind in enumerate(kinds):
        if kind == "step":
            harness.send_plan()
            if harness.sent:
                harness.retire()
            continue
        tail = [i % 50, i // 50, *[9] * 18]
        harness.submit(f"{kind}{i}", (SYSTEM if kind == "hot" else []) + tail, priority=int(kind == "urgent"))
    harness.run()
    assert harness.state.counters.worst_displacement_tokens <= min(overtake_tokens + 24, 24 * GRANTED_REQUESTS)


def test_a_long_queue_may_be_overtaken_by_half_of_its_length() -> None:
    harness = make_harness(num_pages=8000, config=SchedulerConfig(max_running=1, overtake_seconds=1e9))
    harness.submit("warm", SYSTEM, max_new_tokens=1)
    harness.run()
    for i in range(100):
        harness.submit(f"cold{i}", [i % 50, i // 50, *[9] * 8], max_new_tokens=1)
    for i in range(100):
        harness.submit(f"hot{i}", [*SYSTEM, i % 50, i // 50, 1, 1], max_new_tokens=1)
    order: list[str] = []
    while len(order) < 200 and harness.send_plan() is not None:
        order += list(harness.state.running)
        harness.retire()
    first_cold = next(i for i, request_id in enumerate(order) if request_id.startswith("cold"))
    assert 50 <= first_cold <= 75


def test_a_retracted_request_goes_first() -> None:
    harness = make_harness(num_pages=400, config=SchedulerConfig(max_running=2))
    harness.submit("a", [1] * 20)
    harness.send_plan()
    harness.submit("b", [2] * 20, priority=5)
    retract(harness.state, harness.state.running["a"])
    assert tried(harness)[0] == "a"


@pytest.mark.parametrize("policy", ["longest-prefix", "fcfs", "depth-first"])
@pytest.mark.parametrize("behind", [0, 40])
def test_what_a_herd_shares_is_computed_once_also_behind_a_cached_prefix(policy: str, behind: int) -> None:
    config = SchedulerConfig(max_running=32, prefill_tokens=64, policy=policy)
    harness = make_harness(num_pages=600, config=config)
    if behind:
        harness.submit("warm", SYSTEM, max_new_tokens=1)
        harness.run()
    before = harness.runner.prefilled_tokens
    for i in range(16):
        harness.submit(f"r{i}", [*SYSTEM[:behind], *DOCUMENT, i, i + 1, i + 2])
    harness.run()
    assert harness.runner.prefilled_tokens - before <= len(DOCUMENT) + 16 * (3 + harness.state.cache.page_tokens)


def cancelled(harness: Harness, leader: str) -> None:
    harness.take(intake.cancel(harness.state, CLIENT, leader))


def retracted(harness: Harness, leader: str) -> None:
    retract(harness.state, harness.state.running[leader])
    harness.take(intake.cancel(harness.state, CLIENT, leader))


def broken(harness: Harness, leader: str) -> None:
    harness.runner.broken_rows = {harness.state.running[leader].row}


def flushed(harness: Harness, leader: str) -> None:
    harness.state.cache.flush()


@pytest.mark.parametrize("fails", [cancelled, retracted, broken, flushed])
def test_another_takes_over_when_a_leader_is_lost(fails: Callable[[Harness, str], None]) -> None:
    harness = make_harness(num_pages=800, config=SchedulerConfig(max_running=32, prefill_tokens=64, overlap=False))
    for i in range(4):
        harness.submit(f"r{i}", [*DOCUMENT, i, i], max_new_tokens=1)
    harness.send_plan()
    (leader,) = harness.state.running
    harness.retire()
    harness.send_plan()
    assert set(harness.state.running) == {leader}, "the others follow"
    fails(harness, leader)
    for _ in range(8):
        if harness.sent:
            harness.retire()
        harness.send_plan()
        if set(harness.state.running) - {leader}:
            break
    followers = set(harness.state.running) - {leader}
    assert len(followers) == 1, "one takes over, the rest follow it"
    harness.run()
    assert len(harness.terminal) == 4


def test_another_takes_over_when_a_leader_finishes_no_page_for_long() -> None:
    harness = make_harness(num_pages=800, config=SchedulerConfig(max_running=32))
    for i in range(4):
        harness.submit(f"r{i}", [*DOCUMENT, i, i], max_new_tokens=1)
    run_past_a_silent_leader(harness)
    assert len(harness.terminal) == 4


def test_a_leader_that_goes_another_way_leaves_its_followers_to_a_new_one() -> None:
    harness = make_harness(num_pages=800, config=SchedulerConfig(max_running=32, prefill_tokens=64))
    harness.submit("way", DOCUMENT[:200] + [1] * 600, max_new_tokens=1)
    harness.send_plan()
    for i in range(3):
        harness.submit(f"r{i}", [*DOCUMENT, i, i], max_new_tokens=1)
    leaders = []
    while harness.state.waiting:
        harness.send_plan()
        leaders += [request_id for request_id in harness.state.running if request_id not in leaders]
        if len(leaders) == 2:
            assert harness.state.running["way"].computed_tokens < 800, "it did not wait for the end of the other"
        harness.retire()
    harness.run()
    assert leaders[:2] == ["way", "r0"]
    assert harness.runner.prefilled_tokens <= 800 + 200 + 3 * (2 + harness.state.cache.page_tokens)


def test_several_answers_to_one_prompt_of_whole_pages_compute_it_once() -> None:
    harness = make_harness(num_pages=400, page_tokens=4, config=SchedulerConfig(max_running=8, prefill_tokens=64))
    for i in range(6):
        harness.submit(f"r_{i}", DOCUMENT[:200], max_new_tokens=4)
    harness.run()
    assert harness.runner.prefilled_tokens == 200 + 5 * 1, "the last token is always computed"


def test_ten_thousand_requests_that_share_a_prompt_compute_it_once_and_go_on() -> None:
    harness = make_harness(num_pages=40_000, config=SchedulerConfig(max_running=64, max_queued_requests=10_000))
    for i in range(10_000):
        harness.submit(f"r{i}", [*SYSTEM, i % 50, i // 50 % 50, i // 2500], max_new_tokens=0)
    for _ in range(20):
        harness.send_plan()
        harness.retire()
    assert len(harness.terminal) >= 500
    assert harness.runner.prefilled_tokens <= 40 + 3 * (len(harness.terminal) + 2 * 64)
    harness.take(intake.abort(harness.state, None))
    assert len(harness.terminal) == 10_000
    assert not harness.state.cache.waiters.roots


def test_depth_first_runs_what_shares_a_prefix_together() -> None:
    harness = make_harness(num_pages=8000, config=SchedulerConfig(max_running=1, policy="depth-first"))
    branches = [DOCUMENT[start : start + 60] for start in (0, 100, 200)]
    for i in range(30):
        harness.submit(f"{i % 3}-{i}", [*branches[i % 3], i], max_new_tokens=1)
    order: list[str] = []
    while len(order) < 30 and harness.send_plan() is not None:
        order += [request_id[0] for request_id in harness.state.running]
        harness.retire()
    assert sum(left != right for left, right in pairwise(order)) == 2
    assert harness.runner.prefilled_tokens <= 3 * 60 + 30 * (1 + harness.state.cache.page_tokens)


def make_request(prompt: list[int], arrival: int, *, priority: int = 0) -> Request:
    harness = make_harness()
    harness.submit("r", prompt, priority=priority)
    (request,) = harness.state.waiting
    request.arrival = arrival
    return request


def test_a_sweep_goes_on_behind_the_last_one_and_starts_again_at_the_end() -> None:
    elevator = Elevator(page_tokens=1)
    requests = [make_request([token, 7], token) for token in (1, 2, 3, 4)]
    for request in requests:
        elevator.add(request)
    elevator.remove(requests[1], is_taken=True)
    elevator.add(make_request([1, 9], 9))
    assert [each.arrival for each in elevator.in_order(lambda _: None)] == [3, 4, 1, 9]
    assert [each.arrival for each in elevator.in_order(lambda each: 1 if each.arrival == 1 else None)] == [3, 4]


def test_a_sweep_passes_over_those_who_wait_for_the_same_and_nobody_else() -> None:
    elevator = Elevator(page_tokens=2)
    following, too = make_request([1, 2, 3, 4, 5], 1), make_request([1, 2, 3, 4, 6], 2)
    shorter, scored = make_request([1, 2, 3, 4], 3), make_request([1, 2, 3, 4, 5], 4)
    scored.next_logprob = 1
    for request in (following, too, shorter, scored):
        elevator.add(request)
    assert [each.arrival for each in elevator.in_order(lambda each: 4 if each is following else None)] == [4, 3]


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 50)), max_size=80), st.integers(0, 320))
def test_overtaking_sums_what_came_later(taken: list[tuple[int, int]], arrival: int) -> None:
    overtaking = Overtaking()
    for other, num_tokens in taken:
        overtaking.add(other, num_tokens, oldest=0)
    assert overtaking.later_than(arrival) == sum(num_tokens for other, num_tokens in taken if other > arrival)


def test_overtaking_forgets_what_nobody_asks_for() -> None:
    overtaking = Overtaking()
    for arrival in range(1, 100_000):
        overtaking.add(arrival, 2, oldest=max(1, arrival - 10))
    assert overtaking.later_than(99_990) == 18
    assert len(overtaking._sums) < 1000
