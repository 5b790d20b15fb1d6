from __future__ import annotations

import random

import pytest

from scheduler.output_length import MAX_NAMESPACES, QUANTILE, OutputLength

NO_LIMIT = 10**9


def expected(lengths: OutputLength, namespace: str = "chat", *, output_tokens: int = 0, limit: int = NO_LIMIT) -> int:
    estimate = lengths.of(namespace)
    return estimate.expected_tokens(output_tokens=output_tokens, max_new_tokens=limit, num_retractions=0)


def teach(lengths: OutputLength, outputs: list[int], namespace: str = "chat", *, is_cut: bool = False) -> None:
    for output_tokens in outputs:
        lengths.observe(namespace, output_tokens, is_cut=is_cut)


def test_the_expected_length_is_the_stated_quantile_of_what_was_seen() -> None:
    rng, lengths = random.Random(0), OutputLength()
    outputs = [int(rng.lognormvariate(5, 0.8)) for _ in range(2000)]
    teach(lengths, outputs)
    assert expected(lengths) == pytest.approx(sorted(outputs)[int(QUANTILE * len(outputs))], rel=0.25)


def test_what_has_already_come_counts() -> None:
    rng, lengths = random.Random(0), OutputLength()
    teach(lengths, [20 if rng.random() < 0.9 else 1000 for _ in range(2000)])
    assert expected(lengths) < 25
    assert expected(lengths, output_tokens=30) == pytest.approx(1000, rel=0.1)
    assert expected(lengths, output_tokens=3000) > 3000, "longer than anything seen: it will go on for a while"


def test_an_output_that_was_cut_off_is_no_sign_of_short_ones() -> None:
    rng, lengths = random.Random(0), OutputLength()
    for _ in range(1000):
        teach(lengths, [16], is_cut=True)
        teach(lengths, [int(rng.gauss(500, 20))])
    assert expected(lengths) == pytest.approx(510, rel=0.1)
    assert expected(lengths, limit=16) == 16


def test_never_more_than_the_request_may_get_and_more_with_every_retraction() -> None:
    lengths = OutputLength()
    teach(lengths, [100] * 300)
    estimate = lengths.of("chat")

    def told(num_retractions: int, limit: int) -> int:
        return estimate.expected_tokens(output_tokens=90, max_new_tokens=limit, num_retractions=num_retractions)

    once, twice = told(1, NO_LIMIT) - 90, told(2, NO_LIMIT) - 90
    assert 0 < told(0, NO_LIMIT) - 90 < once < twice == 2 * once
    assert told(9, 120) == 120


def test_namespaces_are_told_apart_and_a_new_one_begins_with_what_all_have_shown() -> None:
    lengths = OutputLength()
    teach(lengths, [40] * 300, "short")
    teach(lengths, [4000] * 300, "long")
    assert expected(lengths, "short") == pytest.approx(40, rel=0.1)
    assert expected(lengths, "long") == pytest.approx(4000, rel=0.1)
    lengths = OutputLength()
    cold = expected(lengths, "cold")
    teach(lengths, [40] * 300, "short")
    assert cold > 100
    assert expected(lengths, "new") == pytest.approx(40, rel=0.1)


def test_what_is_new_counts_more_than_what_is_old() -> None:
    lengths = OutputLength()
    teach(lengths, [40] * 2000)
    teach(lengths, [400] * 600)
    assert expected(lengths) == pytest.approx(400, rel=0.1)


def test_namespaces_are_forgotten_when_there_are_too_many_the_one_in_use_last() -> None:
    lengths = OutputLength()
    teach(lengths, [4000] * 2000, "others")
    teach(lengths, [40] * 50, "used")
    for i in range(2 * MAX_NAMESPACES):
        lengths.observe(f"salt {i}", 4000, is_cut=False)
        assert expected(lengths, "used") < 100
    assert len(lengths._estimates) == MAX_NAMESPACES
