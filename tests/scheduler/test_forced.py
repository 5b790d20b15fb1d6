"""Tokens that a grammar forces: in fewer steps, and otherwise as if they had been made one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix.cache import Namespace
from scheduler import intake
from scheduler.config import SchedulerConfig
from tests.scheduler.fake_runner import VOCABULARY, expected_output
from tests.scheduler.harness import CLIENT, GRAMMAR, Harness, make_harness
from wire.messages.encoding import bytes_to_ids
from wire.messages.to_tokenizer import Done

PROMPT = [(i * i + 3) % VOCABULARY for i in range(60)]


def _done(harness: Harness, request_id: str) -> Done:
    ended = harness.terminal[request_id]
    assert isinstance(ended, Done)
    return ended


def _advance(harness: Harness) -> None:
    """Plan as far ahead as may be, and let one step retire."""
    while harness.send_plan() is not None:
        pass
    harness.retire()


@pytest.mark.parametrize("overlap", [True, False])
def test_forced_tokens_are_computed_together(overlap: bool) -> None:
    num_steps = []
    for grammar in (None, GRAMMAR):
        harness = make_harness(config=SchedulerConfig(overlap=overlap))
        harness.submit("a", PROMPT[:10], max_new_tokens=100, grammar=grammar)
        harness.run()
        assert harness.outputs["a"] == expected_output(PROMPT[:10], max_new_tokens=100)
        harness.check()
        num_steps.append(harness.state.counters.steps_total)
    assert num_steps[1] < 0.7 * num_steps[0]


@settings(deadline=None)
@given(
    prompt_tokens=st.integers(1, 20),
    max_new_tokens=st.integers(1, 40),
    stop=st.lists(st.integers(0, VOCABULARY - 1), max_size=6),
    page_tokens=st.sampled_from([1, 4, 16]),
    overlap=st.booleans(),
)
def test_length_and_stop_ids_end_an_answer_at_the_same_token_as_without(
    prompt_tokens: int, max_new_tokens: int, stop: list[int], page_tokens: int, overlap: bool
) -> None:
    ends = []
    for grammar in (None, GRAMMAR):
        harness = make_harness(num_pages=256, page_tokens=page_tokens, config=SchedulerConfig(overlap=overlap))
        harness.submit(
            "a", PROMPT[:prompt_tokens], max_new_tokens=max_new_tokens, stop_token_ids=tuple(stop), grammar=grammar
        )
        harness.run()
        harness.check()
        done = _done(harness, "a")
        counted = harness.state.counters
        ends.append((harness.outputs["a"], done.reason, done.matched_token_id, counted.output_tokens_total))
        assert counted.computed_tokens_total == prompt_tokens, "only prompts are counted there"
    assert ends[0] == ends[1]


def test_forced_tokens_go_before_prompts_however_long_those_have_waited() -> None:
    harness = make_harness(num_pages=512, config=SchedulerConfig(max_running=8, prefill_tokens=16))
    harness.submit("prompt", [(3 * i + 1) % VOCABULARY for i in range(1500)], max_new_tokens=1)
    harness.submit("answer", PROMPT[:5], max_new_tokens=100, grammar=GRAMMAR)
    while not harness.outputs["answer"]:
        _advance(harness)
    harness.now_s = 2000.0
    steps_without, num_tokens = 0, len(harness.outputs["answer"])
    while "answer" not in harness.terminal:
        _advance(harness)
        steps_without = 0 if len(harness.outputs["answer"]) > num_tokens else steps_without + 1
        num_tokens = len(harness.outputs["answer"])
        assert steps_without <= 1, "only the step that computes the token before forced ones brings nothing new"
    assert "prompt" not in harness.terminal


def test_only_what_is_computed_enters_the_cache() -> None:
    for prompt_tokens in range(1, 24):
        harness = make_harness(page_tokens=2)
        harness.submit("a", PROMPT[:prompt_tokens], max_new_tokens=40, grammar=GRAMMAR)
        while "a" not in harness.terminal:
            _advance(harness)
            known = np.array([*PROMPT[:prompt_tokens], *harness.outputs["a"]], np.int32)
            for running in harness.state.running.values():
                found = harness.state.cache.match_pages(Namespace("fake", None, ""), known)
                assert found <= running.computed_tokens


def test_what_is_forced_in_a_row_is_not_given_to_the_one_that_gets_the_row_next() -> None:
    for num_steps in range(1, 12):
        harness = make_harness(config=SchedulerConfig(max_running=1))
        harness.submit("a", PROMPT[:10], max_new_tokens=100, grammar=GRAMMAR)
        for _ in range(num_steps):
            _advance(harness)
        harness.take(intake.cancel(harness.state, CLIENT, "a"))
        harness.submit("b", PROMPT[20:23], max_new_tokens=6)
        harness.run()
        assert harness.outputs["b"] == expected_output(PROMPT[20:23], max_new_tokens=6)


def test_a_stop_string_inside_of_forced_tokens_leaves_pages_and_rows_whole() -> None:
    harness = make_harness()
    harness.submit("a", PROMPT[:10], max_new_tokens=100, grammar=GRAMMAR)
    while not harness.state.running or not next(iter(harness.state.running.values())).is_forced:
        _advance(harness)
    harness.take(intake.finish(harness.state, CLIENT, "a"))
    harness.run()
    harness.check()
    cache = harness.state.cache
    assert cache.free_pages + cache.evictable_pages == cache.num_pages
    # What was told but not computed is not found again.
    known = [*PROMPT[:10], *harness.outputs["a"]]
    harness.submit("b", [*known, 1], max_new_tokens=1)
    harness.run()
    assert harness.outputs["b"] == expected_output([*known, 1], max_new_tokens=1)


def test_a_retracted_answer_goes_on_behind_its_forced_tokens() -> None:
    harness = make_harness(num_pages=24, page_tokens=4, config=SchedulerConfig(max_running=8))
    harness.expect_outputs_of(4)
    for i in range(4):
        harness.submit(f"r{i}", [i, *PROMPT[:9]], max_new_tokens=50, grammar=GRAMMAR)
    harness.run()
    assert harness.state.counters.retractions_total > 0
    for i in range(4):
        assert harness.outputs[f"r{i}"] == expected_output([i, *PROMPT[:9]], max_new_tokens=50)


def test_the_chunk_of_forced_tokens_stands_two_plans_behind_the_one_that_found_them() -> None:
    harness = make_harness()
    harness.submit("a", PROMPT[:10], max_new_tokens=100, grammar=GRAMMAR)
    for _ in range(100):
        while (made := harness.send_plan()) is not None:
            if made.chunks and harness.outputs["a"]:
                (chunk,) = made.chunks
                chunk_ids = bytes_to_ids(chunk.token_ids)
                assert chunk.is_sampled
                assert harness.outputs["a"][-len(chunk_ids) :] == chunk_ids
                return
        harness.retire()
    raise AssertionError("nothing was forced")
