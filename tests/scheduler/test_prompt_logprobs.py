from __future__ import annotations

import random

import pytest

from scheduler import intake
from scheduler.config import SchedulerConfig
from scheduler.leave import retract
from tests.scheduler.fake_runner import expected_logprobs, expected_output
from tests.scheduler.harness import CLIENT, Harness, make_harness, run_past_a_silent_leader

PROMPT = [random.Random(5).randrange(50) for _ in range(103)]


def ask(
    harness: Harness, request_id: str, prompt: list[int], *, first: int | None = 0, num_tokens: int = 1, top: int = 0
) -> int:
    """Run a request to its end, see that it tells what it must, and return how many tokens it computed."""
    before = harness.runner.prefilled_tokens
    harness.submit(
        request_id, prompt, max_new_tokens=num_tokens, prompt_logprobs_from=first, num_top_logprobs=top or None
    )
    harness.run()
    harness.check()
    assert harness.outputs[request_id] == expected_output(prompt, max_new_tokens=num_tokens)
    wanted = [] if first is None else expected_logprobs(prompt, first)
    assert harness.prompt_logprobs[request_id] == wanted
    return harness.runner.prefilled_tokens - before


@pytest.mark.parametrize("page_tokens", [1, 4, 16])
@pytest.mark.parametrize("prefill_tokens", [7, 32, 8192])
@pytest.mark.parametrize("overlap", [True, False])
def test_logprobs_of_a_prompt_are_told_again_without_computing_it_again(
    page_tokens: int, prefill_tokens: int, overlap: bool
) -> None:
    config = SchedulerConfig(prefill_tokens=prefill_tokens, overlap=overlap)
    harness = make_harness(num_pages=800 // page_tokens, page_tokens=page_tokens, config=config)
    assert ask(harness, "first", PROMPT) == len(PROMPT)
    assert ask(harness, "second", PROMPT) == 1
    assert ask(harness, "from the middle", PROMPT, first=50) == 1
    assert harness.reuses["second"].cached_tokens == len(PROMPT) - 1
    assert harness.state.counters.bypassed_tokens_total == 0


def test_what_follows_a_known_part_is_computed_from_the_last_known_token_on() -> None:
    harness = make_harness(num_pages=200, page_tokens=4)
    ask(harness, "first", PROMPT[:60])
    longer = [*PROMPT[:60], 1, 2, 3]
    assert ask(harness, "longer", longer) == 1 + 3, "the last known token, for the logprob of the one behind it"
    forked = PROMPT[:41] + [(PROMPT[41] + 1) % 50] * 9
    assert ask(harness, "forked in a page", forked) == 1 + 9
    assert ask(harness, "forked again", forked) == 1


def test_a_prompt_that_was_cached_without_logprobs_is_computed_once_more_and_then_known() -> None:
    harness = make_harness(num_pages=200, page_tokens=4)
    ask(harness, "plain", PROMPT[:100], first=None)
    assert ask(harness, "scored", PROMPT[:100]) == 100
    assert harness.state.counters.bypassed_tokens_total == 99
    assert ask(harness, "scored again", PROMPT[:100]) == 1


def test_a_part_that_was_scored_later_than_the_rest_joins_what_is_known() -> None:
    harness = make_harness(num_pages=200, page_tokens=4)
    ask(harness, "end", PROMPT[:80], first=43)
    assert ask(harness, "end again", PROMPT[:80], first=43) == 1
    assert ask(harness, "all", PROMPT[:80]) == 80
    assert ask(harness, "all again", PROMPT[:80]) == 1


def test_a_page_that_is_given_out_anew_is_not_taken_for_what_it_held() -> None:
    harness = make_harness(num_pages=16, page_tokens=4)
    ask(harness, "first", PROMPT[:40])
    other = [(token + 1) % 50 for token in PROMPT[:56]]
    ask(harness, "other", other, first=None)
    assert ask(harness, "other scored", other) == 56, "its pages held logprobs of another prompt"
    harness.state.cache.flush()
    assert ask(harness, "first again", PROMPT[:40]) == 40


@pytest.mark.parametrize("first", [0, 50, 97])
@pytest.mark.parametrize("page_tokens", [1, 4, 16])
@pytest.mark.parametrize("prefill_tokens", [19, 8192])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("policy", ["longest-prefix", "depth-first"])
def test_simultaneous_scorings_compute_what_they_share_once(
    first: int, page_tokens: int, prefill_tokens: int, overlap: bool, policy: str
) -> None:
    config = SchedulerConfig(max_running=8, prefill_tokens=prefill_tokens, overlap=overlap, policy=policy)
    harness = make_harness(num_pages=800 // page_tokens, page_tokens=page_tokens, config=config)
    prompts = [[*PROMPT[:97], i, i, i] for i in range(3)]
    score(harness, prompts, first=first)
    # Each computes the last shared token too: the logprob of the first one that differs comes from it.
    assert harness.runner.prefilled_tokens == 100 + 2 * 4
    assert ask(harness, "later", prompts[0], first=first) == 1


def score(harness: Harness, prompts: list[list[int]], *, first: int) -> None:
    """Let all come at once, and see that each is told what it must be."""
    for i, prompt in enumerate(prompts):
        harness.submit(f"r{i}", prompt, max_new_tokens=0, prompt_logprobs_from=first)
    harness.run()
    harness.check()
    for i, prompt in enumerate(prompts):
        assert harness.prompt_logprobs[f"r{i}"] == expected_logprobs(prompt, first)


def test_equal_prompts_are_scored_once() -> None:
    harness = make_harness(num_pages=200, page_tokens=4, config=SchedulerConfig(max_running=8))
    score(harness, [PROMPT[:100]] * 4, first=0)
    assert harness.runner.prefilled_tokens == 100 + 3 * 1


def test_many_scorings_of_one_prompt_wait_without_holding_up_others() -> None:
    config = SchedulerConfig(max_running=256, prefill_tokens=20)
    harness = make_harness(num_pages=2000, page_tokens=4, config=config)
    for i in range(100):
        prompt = [*PROMPT[:97], i % 50, i // 50]
        harness.submit(f"r{i}", prompt, max_new_tokens=0, prompt_logprobs_from=0)
    harness.send_plan()
    for _ in range(3):
        harness.send_plan()
        harness.retire()
    harness.submit("other", [9, 9, 9])
    harness.send_plan()
    assert set(harness.state.running) == {"r0", "other"}
    harness.run()
    assert harness.runner.prefilled_tokens <= 97 + 100 * 3 + 3


@pytest.mark.parametrize("waits_for", [{"first": None}, {"first": 40}, {"first": 0, "top": 2}])
def test_who_wants_other_logprobs_than_one_that_runs_computes_them_itself(waits_for: dict[str, int | None]) -> None:
    harness = make_harness(num_pages=200, page_tokens=4, config=SchedulerConfig(max_running=8))
    asked_for, top = waits_for["first"], waits_for.get("top")
    leader, follower = (None, top) if top else (top, None)
    for request_id, first, num_top in (("leader", asked_for, leader), ("follower", 0, follower)):
        harness.submit(request_id, PROMPT[:100], max_new_tokens=0, prompt_logprobs_from=first, num_top_logprobs=num_top)
    harness.send_plan()
    assert set(harness.state.running) == {"leader", "follower"}
    harness.run()
    assert harness.prompt_logprobs["follower"] == expected_logprobs(PROMPT[:100], 0)


@pytest.mark.parametrize("is_broken", [True, False])
def test_another_goes_on_scoring_when_the_one_that_is_waited_for_is_lost(is_broken: bool) -> None:
    config = SchedulerConfig(max_running=8, prefill_tokens=40, overlap=False)
    harness = make_harness(num_pages=200, page_tokens=4, config=config)
    prompts = [[*PROMPT[:97], i] for i in range(3)]
    for i, prompt in enumerate(prompts):
        harness.submit(f"r{i}", prompt, max_new_tokens=0, prompt_logprobs_from=0)
    harness.send_plan()
    harness.retire()
    harness.send_plan()
    assert set(harness.state.running) == {"r0"}
    if is_broken:
        harness.runner.broken_rows = {harness.state.running["r0"].row}
        harness.send_plan()
        while "r0" in harness.state.running:
            harness.retire()
            harness.send_plan()
        harness.runner.broken_rows = set()
    else:
        harness.take(intake.cancel(harness.state, CLIENT, "r0"))
    harness.run()
    harness.check()
    for i in (1, 2):
        assert harness.prompt_logprobs[f"r{i}"] == expected_logprobs(prompts[i], 0)
    assert harness.runner.prefilled_tokens <= 98 + 98 + 2


def test_another_begins_to_score_when_the_one_that_is_waited_for_finishes_no_page_for_long() -> None:
    harness = make_harness(num_pages=200, page_tokens=4, config=SchedulerConfig(max_running=8))
    for i in range(3):
        harness.submit(f"r{i}", [*PROMPT[:97], i], max_new_tokens=0, prompt_logprobs_from=0)
    run_past_a_silent_leader(harness)
    assert len(harness.terminal) == 3


def test_logprobs_of_likely_or_chosen_tokens_bypass_the_cache_and_count_as_bypassed() -> None:
    harness = make_harness(num_pages=200, page_tokens=4)
    ask(harness, "first", PROMPT[:60])
    assert ask(harness, "top", PROMPT[:60], top=2) == 60
    assert harness.state.counters.bypassed_tokens_total == 59


def test_known_logprobs_are_told_once_though_their_request_is_retracted_before_its_first_step_or_later() -> None:
    harness = make_harness(num_pages=200, page_tokens=4, config=SchedulerConfig(prefill_tokens=16))
    ask(harness, "first", PROMPT[:60])
    longer = PROMPT[:60] + PROMPT[:40]
    for request_id, num_retired in (("at once", 0), ("later", 1)):
        harness.submit(request_id, longer, prompt_logprobs_from=0)
        harness.send_plan()
        harness.send_plan()
        for _ in range(num_retired):
            harness.retire()
        retract(harness.state, harness.state.running[request_id])
        harness.run()
        assert harness.prompt_logprobs[request_id] == expected_logprobs(longer, 0)
        harness.check()


def test_memory_for_logprobs_is_taken_only_when_they_are_asked_for() -> None:
    harness = make_harness(num_pages=200, page_tokens=4)
    ask(harness, "plain", PROMPT, first=None)
    assert not harness.state.scores.is_used
    ask(harness, "scored", PROMPT)
    assert harness.state.scores.is_used


def test_a_prompt_cached_without_logprobs_is_scored_though_a_step_ends_before_its_last_token() -> None:
    harness = make_harness(num_pages=200, page_tokens=1, config=SchedulerConfig(prefill_tokens=40, overlap=False))
    ask(harness, "plain", PROMPT[:41], first=None)
    assert ask(harness, "scored", PROMPT[:41]) == 41
    assert ask(harness, "scored again", PROMPT[:41]) <= 2
