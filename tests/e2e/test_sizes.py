"""Prompts of exactly a page, a context, and what lies beside them; prompts of a megabyte."""

from __future__ import annotations

import random

import pytest

from tests.e2e.conftest import TINY_CONTEXT
from tests.e2e.server import Server
from tests.fakes import VOCABULARY

pytestmark = pytest.mark.e2e

PAGE = 16


def ask(server: Server, input_ids: list[int], **sampling: object) -> tuple[list[int], int]:
    """The greedy answer's ids, and how many prompt tokens were cached."""
    wish = {"temperature": 0, "ignore_eos": True, **sampling}
    reply = server.post("/generate", {"input_ids": input_ids, "sampling_params": wish})
    assert reply.status == 200, reply.body
    return reply.json["output_ids"], reply.json["meta_info"]["cached_tokens"]


@pytest.mark.parametrize(
    "num_tokens", [1, 2, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1, TINY_CONTEXT - PAGE]
)
def test_a_prompt_around_a_page_has_the_same_answer_cold_warm_and_after_a_flush(
    tiny_server: Server, num_tokens: int
) -> None:
    prompt = random.Random(num_tokens).choices(range(256), k=num_tokens)
    tiny_server.post("/flush_cache", {})
    cold, cached_cold = ask(tiny_server, prompt, max_new_tokens=PAGE)
    warm, cached_warm = ask(tiny_server, prompt, max_new_tokens=PAGE)
    assert (cached_cold, cached_warm) == (0, num_tokens - 1)
    grown, cached_grown = ask(tiny_server, prompt + cold[:-1], max_new_tokens=1)
    assert cached_grown == num_tokens + PAGE - 2
    tiny_server.post("/flush_cache", {})
    again, _ = ask(tiny_server, prompt, max_new_tokens=PAGE)
    assert cold == warm == again == [*cold[:-1], *grown]
    assert len(cold) == PAGE


def test_a_prompt_of_the_context_is_refused_and_one_less_has_one_token(tiny_server: Server) -> None:
    prompt = random.Random(0).choices(range(256), k=TINY_CONTEXT)
    for too_long in (prompt, [*prompt, 1]):
        refused = tiny_server.post("/generate", {"input_ids": too_long, "sampling_params": {"max_new_tokens": 1}})
        assert refused.status == 400
        assert str(TINY_CONTEXT) in refused.json["error"]["message"]
    cold = ask(tiny_server, prompt[:-1], max_new_tokens=1)
    warm = ask(tiny_server, prompt[:-1], max_new_tokens=1)
    assert len(cold[0]) == 1
    assert cold[0] == warm[0]
    assert warm[1] == TINY_CONTEXT - 2
    refused = tiny_server.post("/generate", {"input_ids": prompt[:-1], "sampling_params": {"max_new_tokens": 2}})
    assert refused.status == 400
    assert refused.json["error"]["param"] == "max_new_tokens"
    full, _ = ask(tiny_server, prompt[: TINY_CONTEXT - PAGE - 1], max_new_tokens=PAGE + 1)
    assert len(full) == PAGE + 1
    whole = tiny_server.post("/generate", {"input_ids": prompt[:-1], "sampling_params": {"max_new_tokens": 0}}).json
    assert whole["output_ids"] == []


@pytest.mark.parametrize("field", ["text", "input_ids"])
def test_a_megabyte_is_refused_at_once_and_others_are_served(tiny_server: Server, field: str) -> None:
    value: object = "a" * 1_000_000 if field == "text" else [97] * 500_000
    refused = tiny_server.post("/generate", {field: value, "sampling_params": {"max_new_tokens": 1}})
    assert refused.status == 400
    assert refused.json["error"]["code"] == "context_length_exceeded"
    assert len(ask(tiny_server, [97], max_new_tokens=2)[0]) == 2
    tiny_server.assert_idle_and_whole()


def test_every_token_of_the_vocabulary_can_be_a_prompt_and_an_answer(tiny_server: Server) -> None:
    output_ids, _ = ask(tiny_server, [*range(VOCABULARY)], max_new_tokens=8)
    assert len(output_ids) == 8
    for token_id in (0, 128, 255, VOCABULARY - 1):
        assert ask(tiny_server, [5], max_new_tokens=3, logit_bias={str(token_id): 100})[0] == [token_id] * 3
    refused = tiny_server.post("/generate", {"input_ids": [VOCABULARY]})
    assert refused.status == 400
