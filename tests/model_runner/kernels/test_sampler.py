from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model_runner.kernels.library import Library
from model_runner.kernels.sampler import SamplerKernels
from model_runner.sampler import sample
from wire.messages.encoding import unpack_logprobs
from wire.sampling import SamplingParams

NUM_DRAWS = 300


@pytest.fixture
def kernels(library: Library) -> SamplerKernels:
    return SamplerKernels(library)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _both(logits_BV: Tensor, params: Sequence[SamplingParams], kernels: SamplerKernels) -> tuple[list[int], list[int]]:
    positions = np.arange(len(logits_BV), dtype=np.int64)
    given, expected = (sample(logits_BV, params, positions, kernels=one) for one in (kernels, None))
    assert (given.is_usable == expected.is_usable).all()
    return given.token_ids.tolist(), expected.token_ids.tolist()


KINDS = [
    {},
    {"temperature": 0.3},
    {"temperature": 5.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 100_000},
    {"top_p": 0.9},
    {"top_p": 1e-9},
    {"top_p": 0.999_999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"temperature": 1.7, "top_k": 12, "top_p": 0.8, "min_p": 0.05},
    {"top_k": 500, "top_p": 0.95},
    {"temperature": 0.0},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("vocabulary", "spread"), [(1, 1.0), (13, 1.0), (700, 3.0), (5000, 0.1), (5000, 8.0)])
def test_seeds_give_the_tokens_that_torch_gives(
    kernels: SamplerKernels, kind: dict[str, float], vocabulary: int, spread: float
) -> None:
    logits = spread * _random(NUM_DRAWS, vocabulary, seed=vocabulary)
    params = [SamplingParams(**{"temperature": 1.0} | kind, seed=3 * i) for i in range(NUM_DRAWS)]
    given, expected = _both(logits, params, kernels)
    # A number that falls on the border of two tokens may fall on its other side.
    assert sum(a != b for a, b in zip(given, expected, strict=True)) <= 1


@settings(max_examples=150, deadline=None)
@given(
    vocabulary=st.integers(1, 90),
    seed=st.integers(0, 2**31),
    levels=st.integers(1, 4),
    top_k=st.none() | st.integers(1, 100),
    top_p=st.sampled_from([1.0, 0.99, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.2, 1.0]),
    num_forbidden=st.integers(0, 60),
)
def test_what_is_drawn_is_among_what_the_parameters_keep_also_of_equal_logits(
    library: Library,
    vocabulary: int,
    seed: int,
    levels: int,
    top_k: int | None,
    top_p: float,
    min_p: float,
    num_forbidden: int,
) -> None:
    numbers = np.random.default_rng(seed)
    logits = torch.from_numpy(numbers.integers(0, levels, (1, vocabulary)).astype(np.float32))
    logits[0, torch.from_numpy(numbers.permutation(vocabulary)[: min(num_forbidden, vocabulary - 1)])] = -torch.inf
    params = SamplingParams(temperature=0.7, seed=seed, top_k=top_k, top_p=top_p, min_p=min_p)
    (token,) = sample(logits, [params], np.array([5]), kernels=SamplerKernels(library)).token_ids.tolist()
    weights = (logits[0].double() / 0.7).softmax(-1)
    order = np.lexsort((np.arange(vocabulary), -weights.numpy()))
    before = np.cumsum(weights.numpy()[order]) - weights.numpy()[order]
    kept = [
        int(token_id)
        for rank, token_id in enumerate(order)
        if rank == 0
        or (
            rank < (top_k or vocabulary)
            and before[rank] < top_p + 1e-6
            and weights[token_id] >= 0.999 * min_p * weights[order[0]]
        )
    ]
    assert token in [token_id for token_id in kept if weights[token_id] > 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 5, 19])
def test_rows_without_usable_logits_are_broken_as_in_torch(kernels: SamplerKernels, bad: float, place: int) -> None:
    logits = _random(5, 20)
    logits[1, place] = bad
    logits[2] = -float("inf")
    logits[3, :19] = -float("inf")
    for params in (SamplingParams(temperature=0.0, seed=1), SamplingParams(seed=1), SamplingParams(seed=1, top_p=0.5)):
        given, expected = _both(logits, [params] * 5, kernels)
        assert given == expected
        assert given[3] == 19


def test_a_row_whose_logits_overflow_when_divided_by_the_temperature_is_broken(kernels: SamplerKernels) -> None:
    logits = _random(3, 700)
    logits[1] *= 1e37
    cold = {"temperature": 1e-5, "seed": 1}
    for params in (SamplingParams(**cold), SamplingParams(**cold, top_p=0.5), SamplingParams(**cold, min_p=0.1)):
        sampled = sample(logits, [params] * 3, np.arange(3, dtype=np.int64), kernels=kernels)
        assert sampled.is_usable.tolist() == [b != 1 for b in range(len(sampled.is_usable))]
        given, expected = _both(logits, [params] * 3, kernels)
        assert given == expected


def test_the_first_of_equal_best_tokens_is_greedys(kernels: SamplerKernels) -> None:
    for size in (1, 8, 9, 64, 1001):
        logits = torch.zeros(3, size)
        logits[1, size // 2 :] = 4
        given, expected = _both(logits, [SamplingParams(temperature=0.0, seed=0)] * 3, kernels)
        assert given == expected


@pytest.mark.parametrize("num_top", [0, 1, 5, 50])
def test_logprobs_of_the_most_likely_tokens_are_torchs(kernels: SamplerKernels, num_top: int) -> None:
    logits = 4 * _random(3, 777)
    params = [SamplingParams(seed=1, num_top_logprobs=num_top, logprob_ids=(3, 700))] * 3
    positions = np.arange(3, dtype=np.int64)
    given = sample(logits, params, positions, kernels=kernels).logprobs
    expected = sample(logits, params, positions).logprobs
    for ours, theirs in zip(given, expected, strict=True):
        own, top = unpack_logprobs(ours)
        expected_own, expected_top = unpack_logprobs(theirs)
        assert own == pytest.approx(expected_own, abs=1e-5)
        assert [token_id for token_id, _ in top] == [token_id for token_id, _ in expected_top]
        assert [value for _, value in top] == pytest.approx([value for _, value in expected_top], abs=1e-5)
