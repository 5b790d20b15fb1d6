from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from model_runner.sampler import NUM_CANDIDATES, sample, uniforms
from wire.messages.encoding import unpack_logprobs
from wire.sampling import SamplingParams

NUM_DRAWS = 4000


def _draw(logits_V: Tensor, params: SamplingParams) -> list[int]:
    """Tokens at `NUM_DRAWS` positions of one request with the same logits."""
    return sample(
        logits_V.expand(NUM_DRAWS, -1), [params] * NUM_DRAWS, np.arange(NUM_DRAWS, dtype=np.int64)
    ).token_ids.tolist()


def _expected(logits_V: Tensor, params: SamplingParams) -> Tensor:
    """The distribution, written the slow way."""
    weights = (logits_V.double() / params.temperature).softmax(-1)
    values, order = weights.sort(descending=True, stable=True)
    keep = torch.zeros(len(weights), dtype=torch.bool)
    mass = 0.0
    for rank, value in enumerate(values.tolist()):
        if rank >= (params.top_k or len(weights)) or mass >= params.top_p or value < params.min_p * values[0].item():
            break
        keep[order[rank]] = True
        mass += value
    kept = torch.where(keep, weights, 0)
    return kept / kept.sum()


def _assert_distributed(drawn: Sequence[int], expected: Tensor) -> None:
    counts = torch.bincount(torch.tensor(drawn), minlength=len(expected)).double()
    assert counts[expected == 0].sum() == 0, "a filtered token was drawn"
    likely = expected * NUM_DRAWS >= 5
    wanted = torch.cat((expected[likely], expected[~likely].sum()[None])) * NUM_DRAWS
    seen = torch.cat((counts[likely], counts[~likely].sum()[None]))
    distance = ((seen - wanted) ** 2 / wanted.clamp(min=1)).sum().item()
    freedom = len(wanted)
    assert distance < freedom + 5 * (2 * freedom) ** 0.5, f"chi-square {distance:.1f} with {freedom} cells"


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=1),
        SamplingParams(seed=2, temperature=0.5),
        SamplingParams(seed=3, top_k=5),
        SamplingParams(seed=4, top_p=0.7),
        SamplingParams(seed=5, min_p=0.2),
        SamplingParams(seed=6, temperature=1.7, top_k=12, top_p=0.8, min_p=0.05),
        SamplingParams(seed=7, top_k=1000),
        SamplingParams(seed=8, top_p=1e-6),
    ],
    ids=str,
)
@pytest.mark.parametrize("vocabulary", [30, 700])
def test_tokens_are_drawn_with_the_probabilities_that_the_parameters_say(
    params: SamplingParams, vocabulary: int
) -> None:
    logits = 2 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(9))
    _assert_distributed(_draw(logits, params), _expected(logits, params))


def test_a_flat_row_whose_mass_exceeds_the_candidates_is_still_exact() -> None:
    logits = 0.1 * torch.randn(3 * NUM_CANDIDATES, generator=torch.Generator().manual_seed(9))
    params = SamplingParams(seed=1, top_p=0.9)
    drawn = _draw(logits, params)
    expected = _expected(logits, params)
    assert (expected > 0).sum() > 2 * NUM_CANDIDATES
    assert len(set(drawn)) > 2 * NUM_CANDIDATES
    assert expected[torch.tensor(drawn)].min() > 0


def test_greedy_takes_the_best_token_whatever_the_others_in_the_batch_do() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    params = [
        SamplingParams(temperature=0.0, seed=1),
        SamplingParams(seed=1),
        SamplingParams(top_k=1, seed=1),
        SamplingParams(temperature=0.0, seed=2),
    ]
    token_ids = sample(logits, params, np.arange(4, dtype=np.int64)).token_ids
    assert token_ids[[0, 2, 3]].tolist() == logits.argmax(-1)[[0, 2, 3]].tolist()


def test_a_row_draws_the_same_token_alone_and_in_any_batch() -> None:
    logits = 3 * torch.randn(6, 400, generator=torch.Generator().manual_seed(1))
    kinds = [{}, {"top_k": 3}, {"top_p": 0.95}, {"min_p": 0.1}, {"temperature": 0.0}, {"temperature": 2.0}]
    params = [SamplingParams(seed=100 + i, **kind) for i, kind in enumerate(kinds)]
    positions = np.arange(10, 16, dtype=np.int64)
    alone = [sample(logits[i : i + 1], params[i : i + 1], positions[i : i + 1]).token_ids[0] for i in range(6)]
    for order in itertools.islice(itertools.permutations(range(6)), 0, 720, 97):
        together = sample(logits[list(order)], [params[i] for i in order], positions[list(order)])
        assert together.token_ids.tolist() == [alone[i] for i in order]


def test_the_random_numbers_depend_on_seed_and_position_and_are_spread_evenly() -> None:
    seeds = np.repeat(np.array([0, 1, -1, 2**63 - 1], np.int64), 1000)
    positions = np.tile(np.arange(1000, dtype=np.int64), 4)
    numbers = uniforms(seeds, positions)
    assert len(set(numbers.tolist())) == len(numbers)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert np.abs(counts - 200).max() < 5 * 200**0.5
    assert uniforms(seeds[5:6], positions[5:6])[0] == numbers[5]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_without_usable_logits_is_broken_and_the_others_are_not(bad: float) -> None:
    logits = torch.randn(4, 20, generator=torch.Generator().manual_seed(2))
    good = sample(logits, [SamplingParams(seed=1)] * 4, np.arange(4, dtype=np.int64)).token_ids
    logits[1, 3] = bad
    logits[2] = -float("inf")
    params = SamplingParams(seed=1, num_top_logprobs=2)
    sampled = sample(logits, [params] * 4, np.arange(4, dtype=np.int64))
    assert np.flatnonzero(~sampled.is_usable).tolist() == [1, 2]
    assert sampled.token_ids[[0, 3]].tolist() == good[[0, 3]].tolist()
    assert 0 <= sampled.token_ids.min() <= sampled.token_ids.max() < 20


def test_logprobs_are_of_the_raw_logits_and_only_for_rows_that_asked() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(2))
    params = [
        SamplingParams(seed=1, temperature=0.3, num_top_logprobs=3),
        SamplingParams(seed=1),
        SamplingParams(temperature=0.0, num_top_logprobs=0),
    ]
    sampled = sample(logits, params, np.arange(3, dtype=np.int64))
    expected = logits.log_softmax(-1)
    own, top = unpack_logprobs(sampled.logprobs[0])
    assert own == pytest.approx(expected[0, int(sampled.token_ids[0])].item(), abs=1e-6)
    assert [token_id for token_id, _ in top] == expected[0].topk(3).indices.tolist()
    assert [value for _, value in top] == pytest.approx(expected[0].topk(3).values.tolist(), abs=1e-6)
    assert sampled.logprobs[1] == b""
    assert unpack_logprobs(sampled.logprobs[2]) == (pytest.approx(expected[2].max().item(), abs=1e-6), [])
