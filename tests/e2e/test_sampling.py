"""Sampling wishes that touch all three processes."""

from __future__ import annotations

import pytest

from tests.e2e.server import Server, wait_until

pytestmark = pytest.mark.e2e

PROMPT = "Write down what the lighthouse keeper saw that evening, in short sentences, one for each ship that passed:"


def test_several_answers_share_the_prompt_and_the_first_is_that_of_a_single_one(shared_server: Server) -> None:
    wish = {"temperature": 1.0, "sampling_seed": 11, "max_new_tokens": 12}
    single = shared_server.generate(PROMPT, **wish)
    shared_server.post("/flush_cache", {})
    answers = shared_server.generate(PROMPT, **wish, n=4)
    assert answers[0]["output_ids"] == single["output_ids"]
    assert len({answer["text"] for answer in answers}) == 4
    num_whole_pages = single["meta_info"]["prompt_tokens"] // 16
    cached = sorted(answer["meta_info"]["cached_tokens"] for answer in answers)
    assert cached[0] == 0
    assert cached[1] >= 16 * num_whole_pages > 0, "the prompt was computed more than once"


def test_penalties_and_bias_change_the_answer(shared_server: Server) -> None:
    plain = shared_server.generate(PROMPT, max_new_tokens=24)["output_ids"]
    assert len(set(plain)) < 24
    for wish in ({"repetition_penalty": 1.8}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        assert shared_server.generate(PROMPT, max_new_tokens=24, **wish)["output_ids"] != plain
    forced = shared_server.generate(PROMPT, max_new_tokens=5, logit_bias={"260": 100})
    assert forced["output_ids"] == [260] * 5
    refused = shared_server.post("/generate", {"text": "x", "sampling_params": {"logit_bias": {"999999": 1}}})
    assert refused.status == 400
    assert "999999" in refused.json["error"]["message"]


def test_a_stop_token_is_impossible_before_the_least_length(shared_server: Server) -> None:
    wish = {"max_new_tokens": 8, "logit_bias": {"260": 100}, "stop_token_ids": [260]}
    assert shared_server.generate(PROMPT, **wish)["output_ids"] == [260]
    output_ids = shared_server.generate(PROMPT, **wish, min_new_tokens=4)["output_ids"]
    assert len(output_ids) == 5
    assert output_ids.index(260) == 4


def test_scoring_an_answer_gives_the_logprobs_that_it_was_generated_with(shared_server: Server) -> None:
    shape = {"return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [260, 261]}
    request = {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 10}, **shape}
    answer = shared_server.post("/generate", {**request, "return_prompt_token_ids": True}).json
    prompt_ids, output_ids = answer["prompt_token_ids"], answer["output_ids"]
    bypassed = shared_server.metric("axil_bypassed_tokens_total")
    scored = shared_server.post(
        "/generate",
        {
            "input_ids": [*prompt_ids, *output_ids],
            "sampling_params": {"max_new_tokens": 0},
            "logprob_start_len": len(prompt_ids),
            **shape,
        },
    ).json["meta_info"]
    given = answer["meta_info"]
    assert [one[1] for one in scored["input_token_logprobs"]] == output_ids
    for kind in ("top_logprobs", "token_ids_logprobs"):
        flat = [
            [triple for token in meta for triple in token]
            for meta in (scored[f"input_{kind}"], given[f"output_{kind}"])
        ]
        assert [one[1] for one in flat[0]] == [one[1] for one in flat[1]]
        assert [one[0] for one in flat[0]] == pytest.approx([one[0] for one in flat[1]], abs=1e-3)
    assert scored["cached_tokens"] == len(prompt_ids) - 1
    whole = shared_server.post(
        "/generate", {"text": PROMPT, "sampling_params": {"max_new_tokens": 0}, "logprob_start_len": 0, **shape}
    ).json["meta_info"]
    assert whole["cached_tokens"] == 0
    assert whole["input_token_logprobs"][0] == [None, prompt_ids[0], None]
    assert len(whole["input_token_logprobs"]) == len(prompt_ids)
    least = bypassed + len(prompt_ids) - 1
    wait_until(lambda: shared_server.metric("axil_bypassed_tokens_total") >= least, "the bypassed tokens are counted")


def test_a_pattern_ends_an_answer(shared_server: Server) -> None:
    whole = shared_server.generate(PROMPT, max_new_tokens=24)["text"]
    stopped = shared_server.generate(PROMPT, max_new_tokens=24, stop_regex=["[a-z]{4,}[^a-z]"])
    assert whole.startswith(stopped["text"])
    assert len(stopped["text"]) < len(whole)
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": "[a-z]{4,}[^a-z]"}
