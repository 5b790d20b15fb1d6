"""Several ranks behind one server: the embedded model, whose 9 query and 3 kv heads three of them share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

import axil
from tests.deadline import DEADLINE_S
from tests.e2e.server import Server
from tests.e2e.test_processes import OpenStream

pytestmark = pytest.mark.e2e

FLAGS = ("--tensor-parallel", "3", "--dtype", "float32", "--max-total-tokens", "4000")
PROMPTS = ["The capital of France is", "Once upon a time", "def fibonacci(n):\n"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("ranks"), *FLAGS)
    try:
        yield started.wait_ready()
        started.assert_idle_and_whole()
    finally:
        started.stop()


def test_what_all_ranks_would_say_is_said_once(server: Server) -> None:
    assert server.log.count("the KV pool holds") == 1


def test_three_ranks_give_the_greedy_tokens_of_one(server: Server, shared_server: Server) -> None:
    for prompt in PROMPTS:
        answers = [one.generate(prompt, max_new_tokens=24) for one in (server, shared_server)]
        assert answers[0]["output_ids"] == answers[1]["output_ids"]


def test_what_is_cached_gives_the_same_bits(server: Server) -> None:
    request = {
        "text": "A cached prompt of some words, long enough for several pages of tokens. " * 4,
        "sampling_params": {"temperature": 0, "max_new_tokens": 12},
        "return_logprob": True,
    }
    cold, warm = (server.post("/generate", request).json for _ in range(2))
    assert warm["meta_info"]["cached_tokens"] > cold["meta_info"]["cached_tokens"] == 0
    assert cold["meta_info"]["output_token_logprobs"] == warm["meta_info"]["output_token_logprobs"]


def test_what_only_the_first_rank_knows_changes_the_tokens_of_all(server: Server) -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    for sampling in ({"json_schema": schema}, {"frequency_penalty": 0.5, "temperature": 1.0, "sampling_seed": 3}):
        answers = [server.generate(PROMPTS[0], max_new_tokens=24, **sampling)["output_ids"] for _ in range(2)]
        assert answers[0] == answers[1]
    scored = server.post("/generate", {"text": PROMPTS[1], "return_logprob": True, "logprob_start_len": 0})
    assert len(scored.json["meta_info"]["input_token_logprobs"]) == scored.json["meta_info"]["prompt_tokens"]


def test_a_rank_that_is_killed_is_named_and_open_requests_get_an_error_at_once(
    start: Callable[..., Server],
) -> None:
    server = start(*FLAGS).wait_ready()
    stream = OpenStream(server)
    # They are started in their order.
    ranks = sorted(pid for name, pid in server.parts.items() if name.startswith("model_runner"))
    assert len(ranks) == 3
    os.kill(ranks[2], signal.SIGKILL)
    stream.thread.join(DEADLINE_S)
    assert stream.ended_s is not None
    assert b'"error"' in stream.received
    assert server.process.wait(DEADLINE_S) == 1
    assert "the model runner of rank 2 died (killed by SIGKILL)" in server.log
    server.assert_nothing_left()


def test_a_model_that_can_not_be_divided_says_by_what_it_can(start: Callable[..., Server]) -> None:
    server = start("--tensor-parallel", "2")
    assert server.process.wait(2 * DEADLINE_S) == 1
    assert "--tensor-parallel 2 does not divide the model's 9 query heads; set it to 1 or 3" in server.log
    server.assert_nothing_left()


def test_an_engine_has_ranks_too() -> None:
    sampling = axil.SamplingParams(temperature=0, max_new_tokens=8)
    texts = []
    for num_ranks in (1, 3):
        with axil.Engine(tensor_parallel=num_ranks, dtype="float32", max_total_tokens=4000, threads=1) as engine:
            texts.append(engine.generate(PROMPTS[0], sampling))
    assert texts[0] == texts[1]
