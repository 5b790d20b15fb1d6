import math
from typing import Any

import pytest

from wire.errors import Refused
from wire.sampling import MAX_SAMPLES, SamplingParams, checked, with_seed_of_sample


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_new_tokens": 0},
        {"max_new_tokens": 10**9},
        {"temperature": 0.0},
        {"temperature": 1e6},
        {"top_k": 1},
        {"top_p": 1.0},
        {"top_p": 1e-9},
        {"min_p": 0.0},
        {"min_p": 1.0},
        {"repetition_penalty": 1e-9},
        {"repetition_penalty": 2.0},
        {"frequency_penalty": -2.0},
        {"frequency_penalty": 2.0},
        {"presence_penalty": -2.0},
        {"presence_penalty": 2.0},
        {"logit_bias": ((0, -100.0), (2**31 - 1, 100.0))},
        {"min_new_tokens": 5, "max_new_tokens": 5},
        {"min_new_tokens": 5},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"num_top_logprobs": 0},
        {"num_top_logprobs": 20},
        {"stop": ("a",) * 32},
        {"stop_token_ids": (0, 2**31 - 1)},
        {"stop_token_ids": (5,) * 1024},
        {"stop_regex": ("a" * 256,) * 8},
    ],
)
def test_values_at_the_edge_are_taken_unchanged(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    assert checked(params) is params


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens", ("at least 0", "-1")),
        ({"temperature": -0.1}, "temperature", ("[0, 1e+06]", "-0.1")),
        ({"temperature": 1e308}, "temperature", ("[0, 1e+06]", "1e+308")),
        ({"temperature": math.nan}, "temperature", ("finite", "nan")),
        ({"temperature": math.inf}, "temperature", ("finite", "inf")),
        ({"top_k": 0}, "top_k", ("at least 1", "got 0")),
        ({"top_p": 0.0}, "top_p", ("(0, 1]", "got 0.0")),
        ({"top_p": 1.1}, "top_p", ("(0, 1]", "1.1")),
        ({"top_p": math.nan}, "top_p", ("(0, 1]", "nan")),
        ({"min_p": -0.1}, "min_p", ("[0, 1]", "-0.1")),
        ({"min_p": 1.1}, "min_p", ("[0, 1]", "1.1")),
        ({"repetition_penalty": 0.0}, "repetition_penalty", ("[1e-09, 2]", "got 0.0")),
        ({"repetition_penalty": 1e-36}, "repetition_penalty", ("[1e-09, 2]", "1e-36")),
        ({"repetition_penalty": 2.1}, "repetition_penalty", ("[1e-09, 2]", "2.1")),
        ({"frequency_penalty": -2.1}, "frequency_penalty", ("[-2, 2]", "-2.1")),
        ({"presence_penalty": math.nan}, "presence_penalty", ("[-2, 2]", "nan")),
        ({"logit_bias": ((1, 100.5),)}, "logit_bias", ("[-100, 100]", "100.5")),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias", ("got -1",)),
        ({"logit_bias": ((1, 0.5), (2, math.nan))}, "logit_bias", ("nan",)),
        ({"logit_bias": ((1, 0.5),) * 65_537}, "logit_bias", ("65,537", "65,536")),
        ({"top_k": -(10**400)}, "top_k", ("at least 1",)),
        ({"min_new_tokens": -1}, "min_new_tokens", ("at least 0", "-1")),
        ({"min_new_tokens": 6, "max_new_tokens": 5}, "min_new_tokens", ("[0, 5]", "got 6")),
        ({"seed": 2**63}, "seed", (str(2**63),)),
        ({"num_top_logprobs": 21}, "logprobs", ("20", "21")),
        ({"num_top_logprobs": -1}, "logprobs", ("-1",)),
        ({"stop": ("a",) * 33}, "stop", ("33", "32")),
        ({"stop": ("a", "")}, "stop", ("empty",)),
        ({"stop_regex": ("a",) * 9}, "stop_regex", ("9", "8")),
        ({"stop_regex": ("a" * 257,)}, "stop_regex", ("257", "256")),
        ({"stop_token_ids": (1, -1)}, "stop_token_ids", ("-1",)),
        ({"stop_token_ids": (2**31,)}, "stop_token_ids", (str(2**31),)),
    ],
)
def test_a_value_out_of_range_is_refused_with_field_limit_and_value(
    fields: dict[str, Any], field: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(Refused) as refused:
        checked(SamplingParams(**fields))
    assert refused.value.field == field
    for word in (field, *words):
        assert word in refused.value.message


@pytest.mark.parametrize(
    ("fields", "is_greedy"),
    [({}, False), ({"temperature": 0.0}, True), ({"temperature": 1e-7}, True), ({"top_k": 1}, True)],
)
def test_greedy_is_no_temperature_or_one_candidate(fields: dict[str, Any], is_greedy: bool) -> None:
    assert SamplingParams(**fields).is_greedy is is_greedy


@pytest.mark.parametrize("seed", [0, 7, -1, -(2**63), 2**63 - 1])
def test_answers_to_one_prompt_have_seeds_of_their_own_and_the_first_has_the_given(seed: int) -> None:
    samples = [with_seed_of_sample(SamplingParams(seed=seed), i) for i in range(MAX_SAMPLES)]
    assert samples[0].seed == seed
    assert len({checked(params).seed for params in samples}) == MAX_SAMPLES
    assert not {params.seed for params in samples[1:]} & set(range(seed - 200, seed + 200))
    assert with_seed_of_sample(SamplingParams(), 3).seed is None


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"max_tokens": 3}, r"SamplingParams has no parameter 'max_tokens'; did you mean max_new_tokens"),
        ({"temprature": 0}, r"'temprature'; did you mean temperature\?"),
        ({"n": 4}, r"n belongs to engine\.generate\(…, n=4\)"),
        ({"json_schema": {}}, r"write grammar=axil\.json_schema\(…\)"),
        ({"regex": "a"}, r"write grammar=axil\.regex\(…\)"),
    ],
)
def test_a_parameter_that_there_is_not_is_told_which_was_meant(params: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        SamplingParams(**params)
