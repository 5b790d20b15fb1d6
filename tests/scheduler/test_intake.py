"""What may be queued, and how it is taken back."""

from __future__ import annotations

import pytest

from scheduler import intake
from scheduler.config import SchedulerConfig
from scheduler.request import ClientId
from tests.scheduler.fake_runner import VOCABULARY
from tests.scheduler.harness import CLIENT, make_harness
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_scheduler import Submit
from wire.messages.to_tokenizer import Refused


def test_a_bias_on_an_id_outside_the_vocabulary_is_refused() -> None:
    harness = make_harness()
    harness.submit("a", [1, 2], logit_bias=((VOCABULARY, 1.0),))
    refused = harness.terminal["a"]
    assert isinstance(refused, Refused)
    assert refused.field == "logit_bias"
    assert str(VOCABULARY) in refused.message


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "code", "words"),
    [
        ([], 4, "invalid_request", ("prompt", "empty")),
        ([1, 50], 4, "invalid_request", ("input_ids", "50", "[0, 50)")),
        ([1, -1], 4, "invalid_request", ("input_ids", "-1")),
        ([1] * 32, 4, "context_length_exceeded", ("32", "KV pool", "max_total_tokens")),
        ([1] * 30, 4, "context_length_exceeded", ("30", "max_new_tokens is 4", "Lower max_new_tokens to 2")),
        ([1] * 30, 50, "context_length_exceeded", ("context is 40", "Lower max_new_tokens to 2")),
        ([1] * 20, 10**9, "context_length_exceeded", ("max_new_tokens is 1000000000",)),
        ([1] * 60, 4, "context_length_exceeded", ("60", "context is 40, output included. Shorten the prompt.")),
    ],
)
def test_what_can_never_fit_is_refused_at_once_with_numbers(
    prompt: list[int], max_new_tokens: int, code: str, words: tuple[str, ...]
) -> None:
    harness = make_harness(num_pages=8, page_tokens=4, context_tokens=40)
    harness.submit("a", prompt, max_new_tokens=max_new_tokens)
    refused = harness.terminal["a"]
    assert isinstance(refused, Refused)
    assert refused.code == code
    for word in words:
        assert word in refused.message
    assert not harness.state.waiting


def test_no_limit_on_output_means_what_still_fits() -> None:
    harness = make_harness(num_pages=8, page_tokens=4, context_tokens=40)
    harness.submit("a", [1] * 20, max_new_tokens=None)
    harness.run()
    assert len(harness.outputs["a"]) == 12


def test_an_id_that_is_still_open_is_refused_and_the_first_request_goes_on() -> None:
    harness = make_harness()
    harness.submit("a", [1, 2, 3])
    message = Submit(
        request_id="a",
        token_ids=ids_to_bytes([4]),
        sampling=next(iter(harness.state.waiting)).sampling,
    )
    (reply,) = intake.submit(harness.state, CLIENT, message, now_s=0.0)
    assert isinstance(reply.message, Refused)
    assert reply.message.code == "duplicate_request_id"
    harness.run()
    assert harness.terminal["a"].reason == "length"


def test_a_full_queue_refuses_the_next_request() -> None:
    harness = make_harness(config=SchedulerConfig(max_running=1, max_queued_requests=2))
    for i in range(3):
        harness.submit(f"r{i}", [1, i])
    refused = harness.terminal["r2"]
    assert isinstance(refused, Refused)
    assert refused.code == "overloaded"


def test_a_queue_full_of_tokens_refuses_a_prompt_that_is_too_long_for_the_rest_of_it() -> None:
    harness = make_harness(config=SchedulerConfig(max_running=1, max_queued_tokens=10))
    harness.submit("longer than all", [1] * 12)
    harness.submit("too much", [2])
    refused = harness.terminal["too much"]
    assert isinstance(refused, Refused)
    assert refused.code == "overloaded"
    assert "1 request with 12 prompt tokens wait, this one has 1 more, and --max-queued-tokens is 10" in refused.message
    harness.run()
    harness.submit("later", [2] * 5)
    harness.submit("fits beside it", [3] * 5)
    harness.run()
    assert {harness.terminal[name].reason for name in ("longer than all", "later", "fits beside it")} == {"length"}


def test_abort_matches_ids_exactly() -> None:
    harness = make_harness()
    harness.submit("job-1", [1, 2])
    harness.submit("job-10", [1, 3])
    harness.take(intake.abort(harness.state, "job-1"))
    harness.run()
    assert harness.terminal["job-1"].reason == "cancelled"
    assert harness.terminal["job-10"].reason == "length"


def test_abort_of_all_ends_waiting_and_running_requests() -> None:
    harness = make_harness(config=SchedulerConfig(max_running=1))
    harness.submit("a", [1, 2])
    harness.send_plan()
    harness.submit("b", [1, 3])
    harness.take(intake.abort(harness.state, None))
    assert {ended.reason for ended in harness.terminal.values()} == {"cancelled"}
    harness.retire()
    assert not harness.outputs, "results of cancelled rows are dropped"


def test_a_chosen_id_outside_the_vocabulary_is_refused() -> None:
    harness = make_harness()
    harness.submit("a", [1, 2], num_top_logprobs=0, logprob_ids=(1, VOCABULARY))
    refused = harness.terminal["a"]
    assert isinstance(refused, Refused)
    assert refused.field == "token_ids_logprob"


def test_a_tokenizer_can_end_its_own_requests_only_and_an_operator_all() -> None:
    harness = make_harness()
    harness.submit("a", [1, 2])
    other = ClientId(b"other")
    assert not intake.cancel(harness.state, other, "a")
    assert not intake.finish(harness.state, other, "a")
    assert intake.find(harness.state, "a")
    (reply,) = intake.abort(harness.state, "a")
    assert reply.client == CLIENT
