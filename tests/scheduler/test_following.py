"""Requests that arrive together and share a part of a page which nobody has computed yet."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from radix.edges import FORK_LOOK
from scheduler import intake
from scheduler.config import SchedulerConfig
from scheduler.cost import StepCost
from scheduler.following import LEAST_TOKENS, MOST_STEPS
from tests.scheduler.fake_runner import expected_output
from tests.scheduler.harness import CLIENT, Harness, make_harness
from tests.scheduler.naive import common
from tests.scheduler.test_properties import PREFIXES, SchedulerMachine

DOCUMENT = Random(3).choices(range(50), k=400)


def roomy(*, page_tokens: int = 16, **flags: int | float | bool | str) -> Harness:
    config = SchedulerConfig(max_running=64, **flags)  # type: ignore[arg-type]
    return make_harness(num_pages=16384 // page_tokens, page_tokens=page_tokens, config=config)


def prompt_of_a_fork(harness: Harness, *, shared: int, branch: int) -> list[int]:
    """Behind the answer "root", whose last token is not computed; `shared` tokens are missing for all branches."""
    return [*DOCUMENT[:18], *harness.outputs["root"], *DOCUMENT[100 : 100 + shared - 1], branch, 49]


def fork(harness: Harness, *, shared: int, branches: int = 3) -> dict[str, list[int]]:
    """Run a request to its end and submit several that go on from its answer."""
    harness.submit("root", DOCUMENT[:18], max_new_tokens=6)
    harness.run()
    prompts = {f"r{i}": prompt_of_a_fork(harness, shared=shared, branch=i) for i in range(branches)}
    for request_id, prompt in prompts.items():
        harness.submit(request_id, prompt, max_new_tokens=8)
    return prompts


def answers_are_right(harness: Harness, prompts: dict[str, list[int]]) -> None:
    for request_id, prompt in prompts.items():
        assert harness.outputs[request_id] == expected_output(prompt, max_new_tokens=8)
    harness.check()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("policy", ["longest-prefix", "fcfs", "depth-first"])
@pytest.mark.parametrize("shared", [LEAST_TOKENS, 7, 12, 24])
def test_forks_of_an_answer_compute_what_they_share_behind_it_once(shared: int, policy: str, overlap: bool) -> None:
    harness = roomy(policy=policy, overlap=overlap)
    prompts = fork(harness, shared=shared)
    before = harness.runner.prefilled_tokens
    harness.run()
    assert harness.runner.prefilled_tokens - before == shared + 3 * 2
    answers_are_right(harness, prompts)


def test_for_fewer_tokens_nobody_waits() -> None:
    harness = roomy()
    prompts = fork(harness, shared=LEAST_TOKENS - 1)
    harness.send_plan()
    assert set(harness.state.running) == {"r0", "r1", "r2"}
    harness.run()
    answers_are_right(harness, prompts)


@pytest.mark.parametrize(("least", "running"), [(8, {"r0"}), (9, {"r0", "r1", "r2"})])
def test_nor_for_tokens_that_are_cheap_beside_a_step(least: int, running: set[str]) -> None:
    harness = roomy()
    fork(harness, shared=8)
    harness.state.cost = StepCost(base_s=0.001 * 16 * least, token_s=0.001, context_s=1e-12)
    harness.send_plan()
    assert set(harness.state.running) == running


def test_the_leader_and_who_shares_nothing_with_it_go_on() -> None:
    harness = roomy()
    fork(harness, shared=6, branches=20)
    harness.submit("cold", [9] * 30)
    harness.send_plan()
    assert set(harness.state.running) == {"r0", "cold"}
    harness.retire()
    harness.send_plan()
    assert len(harness.state.running) == 21, "a step later all have what they share"


@pytest.mark.parametrize("overlap", [True, False])
def test_a_page_is_waited_for_also_when_a_chunk_of_the_leaders_ends_in_it(overlap: bool) -> None:
    harness = roomy(prefill_tokens=52, overlap=overlap)
    prompts = {f"r{i}": [*DOCUMENT[:60], i, 49 - i] for i in range(6)}
    for request_id, prompt in prompts.items():
        harness.submit(request_id, prompt, max_new_tokens=8)
    harness.run()
    assert harness.runner.prefilled_tokens == 60 + 6 * 2
    answers_are_right(harness, prompts)


def test_who_comes_while_the_leader_is_under_way_waits_too() -> None:
    harness = roomy()
    fork(harness, shared=6, branches=1)
    harness.send_plan()
    harness.submit("late", prompt_of_a_fork(harness, shared=6, branch=1))
    before = harness.runner.prefilled_tokens
    harness.run()
    assert harness.runner.prefilled_tokens - before == 6 + 2 * 2


def cancelled(harness: Harness) -> None:
    harness.take(intake.cancel(harness.state, CLIENT, "r0"))


def broken(harness: Harness) -> None:
    harness.runner.broken_rows = {harness.state.running["r0"].row}


def flushed(harness: Harness) -> None:
    harness.state.cache.flush()


@pytest.mark.parametrize("fails", [cancelled, broken, flushed])
def test_another_takes_over_when_the_leader_is_lost(fails: Callable[[Harness], None]) -> None:
    harness = roomy(overlap=False)
    prompts = fork(harness, shared=8)
    harness.send_plan()
    assert set(harness.state.running) == {"r0"}
    fails(harness)
    harness.retire()
    harness.runner.broken_rows = set()
    harness.send_plan()
    assert set(harness.state.running) - {"r0"} == {"r1"}, "one takes over, the other follows it"
    harness.run()
    answers_are_right(harness, {"r1": prompts["r1"], "r2": prompts["r2"]})


def test_a_leader_that_gets_no_turn_is_waited_for_during_a_few_steps_only() -> None:
    harness = roomy(prefill_tokens=16, overlap=False)
    fork(harness, shared=8, branches=0)
    harness.submit("long", [9] * 300, priority=1)
    harness.submit("leader", prompt_of_a_fork(harness, shared=8, branch=0))
    harness.send_plan()
    assert set(harness.state.running) == {"long", "leader"}
    harness.submit("follower", prompt_of_a_fork(harness, shared=8, branch=1), priority=2)
    waited = 0
    while "follower" not in harness.state.running:
        harness.retire()
        harness.send_plan()
        waited += 1
    assert waited == MOST_STEPS + 1, "put off in so many plans"
    harness.run()
    assert len(harness.terminal) == 4


def test_who_has_been_overtaken_for_long_enough_does_not_wait() -> None:
    harness = roomy(overtake_seconds=0.0)
    fork(harness, shared=8, branches=0)
    harness.submit("first", prompt_of_a_fork(harness, shared=8, branch=0))
    harness.submit("urgent", prompt_of_a_fork(harness, shared=8, branch=1), priority=1)
    harness.send_plan()
    assert set(harness.state.running) == {"first", "urgent"}


TREES = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(0, 2)), min_size=1, max_size=FORK_LOOK
)


@settings(deadline=None)
@given(
    requests=TREES,
    page_tokens=st.sampled_from([1, 4, 16]),
    prefill_tokens=st.sampled_from([16, 40, 8192]),
    overlap=st.booleans(),
)
def test_of_what_comes_together_little_is_computed_twice(
    requests: list[tuple[list[int], int]], page_tokens: int, prefill_tokens: int, overlap: bool
) -> None:
    harness = roomy(page_tokens=page_tokens, prefill_tokens=prefill_tokens, overlap=overlap)
    for i, (prompt, most) in enumerate(requests):
        harness.submit(f"r{i}", prompt, max_new_tokens=most)
    harness.run()
    prompts = sorted(prompt for prompt, _ in requests)
    least = sum(max(1, len(one) - common(one, before)) for before, one in zip([[], *prompts], prompts, strict=False))
    # Each computes again what is not worth a wait, and its last token, though that may be the start of a longer one.
    assert harness.runner.prefilled_tokens <= least + (LEAST_TOKENS - 1 + 1) * (len(prompts) - 1)


class ForksMachine(SchedulerMachine):
    """The random life of a scheduler in which several come at once that share what nobody has computed."""

    @rule(
        start=st.integers(0, 2),
        shared=st.integers(4, 60),
        branches=st.integers(2, 4),
        logprobs_from=st.sampled_from([None, None, 0, 9]),
        priorities=st.lists(st.integers(0, 1), min_size=4, max_size=4),
    )
    def submit_forks(
        self, start: int, shared: int, branches: int, logprobs_from: int | None, priorities: list[int]
    ) -> None:
        for branch, priority in zip(range(branches), priorities, strict=False):
            self.submit(
                prefix=PREFIXES[start],
                prefix_tokens=4,
                suffix=[*DOCUMENT[start : start + shared], branch, 49],
                max_new_tokens=5,
                stop=[],
                salt="",
                penalty=1.0,
                logprobs_from=logprobs_from,
                priority=priority,
                grammar=None,
            )

    @invariant()
    def who_is_put_off_is_known_to_a_leader_or_comes_back_next(self) -> None:
        if not hasattr(self, "harness"):
            return
        waiting, leaders = self.harness.state.waiting, self.harness.state.waiting.leaders
        known = [each.request for leader in leaders._leaders.values() for each in leader.put_off]
        known += leaders._recalled
        assert all(request in known for request in waiting if waiting.is_put_off(request))


ForksMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_scheduler_keeps_its_promises_to_forks = ForksMachine.TestCase
