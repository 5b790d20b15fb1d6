import math
from typing import Any

import pytest

from wire.errors import Refused
from wire.sampling import SamplingParams, checked


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_new_tokens": 0},
        {"max_new_tokens": 10**9},
        {"temperature": 0.0},
        {"temperature": 100.0},
        {"top_k": 1},
        {"top_p": 1.0},
        {"top_p": 1e-9},
        {"min_p": 0.0},
        {"min_p": 1.0},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"num_top_logprobs": 0},
        {"num_top_logprobs": 20},
        {"stop": ("a",) * 32},
        {"stop_token_ids": (0, 2**31 - 1)},
        {"stop_token_ids": (5,) * 1024},
    ],
)
def test_values_at_the_edge_are_taken_unchanged(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    assert checked(params) is params


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens", ("at least 0", "-1")),
        ({"temperature": -0.1}, "temperature", ("at least 0", "-0.1")),
        ({"temperature": math.nan}, "temperature", ("finite", "nan")),
        ({"temperature": math.inf}, "temperature", ("finite", "inf")),
        ({"top_k": 0}, "top_k", ("at least 1", "got 0")),
        ({"top_p": 0.0}, "top_p", ("(0, 1]", "got 0.0")),
        ({"top_p": 1.1}, "top_p", ("(0, 1]", "1.1")),
        ({"top_p": math.nan}, "top_p", ("(0, 1]", "nan")),
        ({"min_p": -0.1}, "min_p", ("[0, 1]", "-0.1")),
        ({"min_p": 1.1}, "min_p", ("[0, 1]", "1.1")),
        ({"seed": 2**63}, "seed", (str(2**63),)),
        ({"num_top_logprobs": 21}, "logprobs", ("20", "21")),
        ({"num_top_logprobs": -1}, "logprobs", ("-1",)),
        ({"stop": ("a",) * 33}, "stop", ("33", "32")),
        ({"stop": ("a", "")}, "stop", ("empty",)),
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
