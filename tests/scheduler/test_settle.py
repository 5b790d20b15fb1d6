from __future__ import annotations

import numpy as np

from radix.cache import Namespace
from scheduler import intake
from scheduler.config import SchedulerConfig
from scheduler.plan import plan
from scheduler.request import ClientId
from scheduler.settle import settle
from tests.scheduler.fake_runner import expected_output
from tests.scheduler.harness import CLIENT, make_harness
from wire.messages.encoding import bytes_to_ids, ids_to_bytes
from wire.messages.from_runner import StepResult
from wire.messages.to_scheduler import Submit
from wire.messages.to_tokenizer import Done, StepTokens, Tokens
from wire.sampling import SamplingParams

PROMPT = [(i * i + 3) % 50 for i in range(60)]


def test_a_decode_step_tells_each_client_all_its_tokens_in_one_message_and_ends_after_them() -> None:
    harness = make_harness(config=SchedulerConfig(max_running=8, overlap=False))
    state = harness.state
    for i in range(6):
        params = SamplingParams(max_new_tokens=2 if i == 4 else 5, temperature=0.0, seed=0)
        message = Submit(request_id=f"r{i}", token_ids=ids_to_bytes([i, 1, 2]), sampling=params)
        intake.submit(state, ClientId(b"even" if i % 2 == 0 else b"odd"), message, now_s=0.0)
    for _ in range(2):
        step = plan(state, now_s=0.0)
        assert step is not None
        replies = settle(state, harness.runner.execute(step))
    told = {reply.client: reply.message for reply in replies if isinstance(reply.message, StepTokens)}
    assert told.keys() == {b"even", b"odd"}
    assert told[ClientId(b"even")].request_ids == ("r0", "r2", "r4")
    second = [expected_output([i, 1, 2], max_new_tokens=2)[1] for i in (0, 2, 4)]
    assert bytes_to_ids(told[ClientId(b"even")].token_ids) == second
    assert [type(reply.message) for reply in replies] == [StepTokens, StepTokens, Done]
    assert replies[-1].client == b"even"


def test_logprobs_reach_those_who_asked_and_the_others_stay_in_columns() -> None:
    harness = make_harness()
    harness.submit("plain", PROMPT[:5], max_new_tokens=6)
    harness.submit("asks", PROMPT[:7], max_new_tokens=6, num_top_logprobs=0)
    harness.run()
    assert dict(harness.num_logprobs) == {"plain": 0, "asks": 6}
    assert harness.outputs["asks"] == expected_output(PROMPT[:7], max_new_tokens=6)
    assert harness.outputs["plain"] == expected_output(PROMPT[:5], max_new_tokens=6)


def test_a_first_token_brings_the_reuse_figures_with_it() -> None:
    harness = make_harness(config=SchedulerConfig(overlap=False))
    harness.submit("a", PROMPT[:5])
    step = plan(harness.state, now_s=0.0)
    assert step is not None
    (reply,) = settle(harness.state, harness.runner.execute(step))
    assert isinstance(reply.message, Tokens)
    assert reply.message.reuse is not None


def test_the_page_in_which_a_prompt_ends_is_shared_as_soon_as_it_is_full_and_the_answer_when_it_is_complete() -> None:
    harness = make_harness(page_tokens=4)
    harness.submit("a", PROMPT[:10], max_new_tokens=12)
    whole = np.array(PROMPT[:10] + expected_output(PROMPT[:10], max_new_tokens=12), np.int32)
    found = []
    while "a" not in harness.terminal:
        while harness.send_plan() is not None:
            pass
        harness.retire()
        found.append(harness.state.cache.match_pages(Namespace("fake", None, ""), whole))
    assert found[0] == 8, "the whole pages of the prompt, once they are computed"
    assert set(found[:-1]) == {8, 12}
    assert found[-1] == 20
    harness.check()


def test_an_answer_that_is_cancelled_half_way_stays_cached_as_far_as_it_was_computed() -> None:
    harness = make_harness(page_tokens=4)
    harness.submit("a", PROMPT[:10], max_new_tokens=100)
    for _ in range(30):
        while harness.send_plan() is not None:
            pass
        harness.retire()
    harness.take(intake.cancel(harness.state, CLIENT, "a"))
    computed = np.array(PROMPT[:10] + harness.outputs["a"][:-1], np.int32)
    assert harness.state.cache.match(Namespace("fake", None, ""), computed) == len(computed)


def test_logprobs_are_no_entries_at_all_when_nobody_asked() -> None:
    harness = make_harness(config=SchedulerConfig(overlap=False))
    harness.submit("a", PROMPT[:5])
    step = plan(harness.state, now_s=0.0)
    assert step is not None
    result = harness.runner.execute(step)
    assert result.logprobs == ()
    replies = settle(harness.state, StepResult(step=0, token_ids=result.token_ids))
    assert [type(reply.message) for reply in replies] == [Tokens]
