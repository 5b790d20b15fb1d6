from __future__ import annotations

import math
import random

import numpy as np
import pytest

from scheduler.cost import StepCost, Work


def work(*, decodes: int = 0, start: int = 0, prefill: int = 0) -> Work:
    made = Work(decodes=decodes)
    made.add_chunk(start=start, num_tokens=prefill)
    return made


@pytest.mark.parametrize(
    "true",
    [
        pytest.param(StepCost(base_s=0.5, decode_s=0.03, token_s=0.03, context_s=0.03 / 4000), id="slow"),
        pytest.param(StepCost(base_s=0.02, decode_s=0.003, token_s=0.003, context_s=0.003 / 4000), id="a laptop"),
        pytest.param(StepCost(base_s=0.012, decode_s=2e-5, token_s=3e-5, context_s=3e-5 / 30000), id="an accelerator"),
    ],
)
def test_the_cost_of_any_mix_is_learned_though_some_steps_are_held_up(true: StepCost) -> None:
    rng, cost = random.Random(1), StepCost()
    for _ in range(300):
        step = work(
            decodes=rng.choice([0, 1, 8, 30]),
            start=rng.choice([0, 500, 4000, 30000]),
            prefill=rng.choice([1, 16, 100, 512]),
        )
        held_up = 20.0 if rng.random() < 0.05 else 1.0
        cost.observe(step, elapsed_s=true.predict_s(step) * held_up * math.exp(rng.gauss(0, 0.05)))
    for step in (work(prefill=512), work(prefill=512, start=30000), work(prefill=64, decodes=30), work(decodes=20)):
        assert cost.predict_s(step) == pytest.approx(true.predict_s(step), rel=0.1)


def test_what_a_long_run_of_decode_steps_says_nothing_of_is_not_forgotten() -> None:
    cost = StepCost(base_s=0.02, decode_s=0.001, token_s=0.004, context_s=1e-6)
    for _ in range(5000):
        cost.observe(work(decodes=50), elapsed_s=0.07)
    assert cost.token_s == pytest.approx(0.004)
    assert cost.context_s == pytest.approx(1e-6)


@pytest.mark.parametrize("elapsed_s", [0.0, 1e-9, 1e6])
def test_one_absurd_measurement_decides_nothing(elapsed_s: float) -> None:
    cost, step = StepCost(), work(decodes=5, prefill=100)
    for _ in range(50):
        cost.observe(step, elapsed_s=0.2)
    cost.observe(step, elapsed_s=elapsed_s)
    assert cost.predict_s(step) == pytest.approx(0.2, rel=0.5)


@pytest.mark.parametrize("start", [0, 1000, 100_000])
@pytest.mark.parametrize("context_s", [0.0, 1e-7])
def test_the_affordable_chunk_is_the_longest_within_the_budget(start: int, context_s: float) -> None:
    cost = StepCost(token_s=0.001, context_s=context_s)
    num_tokens = cost.affordable_tokens(start=start, budget_s=0.1)
    assert cost.prefill_s(start=start, num_tokens=num_tokens) <= 0.1 * (1 + 1e-9)
    assert cost.prefill_s(start=start, num_tokens=num_tokens + 1) > 0.1
    assert cost.affordable_tokens(start=start, budget_s=-1.0) == 0


def test_a_run_of_decode_steps_is_learned_from_as_if_each_had_been_observed() -> None:
    one_by_one, together = StepCost(), StepCost()
    elapsed_s = 0.05 + 1e-6 * np.arange(60_000)
    for cost in (one_by_one, together):
        cost.observe(work(decodes=3, prefill=100), elapsed_s=0.3)
    for each in elapsed_s:
        one_by_one.observe(work(decodes=3), elapsed_s=float(each))
    together.observe_decodes(3, elapsed_s=elapsed_s)
    assert together == one_by_one
    step = work(decodes=3, prefill=10)
    assert together.predict_s(step) == one_by_one.predict_s(step)
    assert together.predict_s(work(decodes=3)) == pytest.approx(0.11, rel=0.05)
