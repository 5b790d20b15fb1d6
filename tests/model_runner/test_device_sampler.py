from __future__ import annotations

from collections.abc import Iterator

import flashinfer
import numpy as np
import pytest
import torch
from msgspec.structs import replace

from model_runner.choosing import Chooser
from model_runner.device_sampler import DeviceSampler, Filters, flashinfer_filters, sorting_filters
from model_runner.sampler import sample, uniforms
from wire.messages.to_runner import Admission
from wire.sampling import SamplingParams

from .reference_kernels import reference_kernels

CPU = torch.device("cpu")
VOCABULARY = 300
PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.5, top_k=3),
    SamplingParams(temperature=1.1, top_p=0.5),
    SamplingParams(temperature=0.9, min_p=0.3),
    SamplingParams(temperature=1.0, top_k=40, top_p=0.9, min_p=0.05),
    SamplingParams(temperature=1.3, top_k=1000),
    SamplingParams(temperature=2.0, top_k=1, top_p=0.01),
]


@pytest.fixture(params=["sorting", "flashinfer"])
def filters(request: pytest.FixtureRequest) -> Iterator[Filters]:
    if request.param == "sorting":
        yield sorting_filters()
        return
    with reference_kernels(is_recorded=False):
        yield flashinfer_filters()


def _many(seed: int) -> tuple[torch.Tensor, list[SamplingParams], np.ndarray]:
    logits = 3 * torch.randn(64, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    params = [replace(PARAMS[b % len(PARAMS)], seed=b * 7 + seed) for b in range(len(logits))]
    return logits, params, np.arange(len(logits)) * 3 + 5


def _expected(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """The joint definition, token by token: all filters look at the whole distribution."""
    if params.is_greedy:
        return int(logits.argmax())
    probs = torch.softmax(logits / params.temperature, -1).double().tolist()
    order = sorted(range(len(probs)), key=lambda token_id: -probs[token_id])
    kept, mass = set(), 0.0
    for rank, token_id in enumerate(order):
        is_in_top_p = params.top_p >= 1 or mass < params.top_p
        if rank < (params.top_k or len(order)) and is_in_top_p and probs[token_id] >= params.min_p * probs[order[0]]:
            kept.add(token_id)
        mass += probs[token_id]
    total = sum(probs[token_id] for token_id in kept)
    left = uniforms(np.array([params.seed]), np.array([position]))[0] * total
    for token_id in sorted(kept):
        left -= probs[token_id]
        if left < 0:
            return token_id
    return max(kept)


@pytest.mark.parametrize("seed", range(3))
def test_a_token_is_drawn_from_what_all_filters_keep_of_the_whole_distribution(seed: int, filters: Filters) -> None:
    logits, params, positions = _many(seed)
    token_ids, is_usable = DeviceSampler(CPU, filters).sample(logits, params, positions)
    assert is_usable.all()
    expected = [_expected(logits[b], params[b], int(positions[b])) for b in range(len(params))]
    assert token_ids.tolist() == expected


def test_the_host_draws_the_same_tokens_where_nothing_is_cut_and_from_the_same_set_elsewhere(filters: Filters) -> None:
    logits, params, positions = _many(9)
    token_ids, _ = DeviceSampler(CPU, filters).sample(logits, params, positions)
    on_host = sample(logits, params, positions).token_ids
    is_whole = [one.is_greedy or (one.top_k is None and one.top_p >= 1 and one.min_p <= 0) for one in params]
    assert token_ids[is_whole].tolist() == on_host[is_whole].tolist()
    narrow = [b for b, one in enumerate(params) if one.top_k == 1]
    assert token_ids[narrow].tolist() == on_host[narrow].tolist()


def test_a_rows_token_does_not_depend_on_its_place_or_its_neighbours(filters: Filters) -> None:
    logits, params, positions = _many(2)
    together, _ = DeviceSampler(CPU, filters).sample(logits, params, positions)
    sampler = DeviceSampler(CPU, filters)
    for b in range(0, len(params), 5):
        alone, _ = sampler.sample(logits[b : b + 1], params[b : b + 1], positions[b : b + 1])
        assert alone.item() == together[b].item()


def test_rows_without_usable_logits_are_told_and_hurt_no_others(filters: Filters) -> None:
    logits, params, positions = _many(3)
    expected, _ = DeviceSampler(CPU, filters).sample(logits, params, positions)
    broken = [0, 1, 5]
    logits[0, 7], logits[1], logits[5] = float("nan"), float("nan"), float("inf")
    token_ids, is_usable = DeviceSampler(CPU, filters).sample(logits, params, positions)
    assert (~is_usable).nonzero().flatten().tolist() == broken
    assert token_ids[broken].tolist() == [0, 0, 0]
    assert token_ids[is_usable].tolist() == expected[is_usable].tolist()


def test_rows_that_need_the_host_share_a_step_with_rows_that_do_not() -> None:
    logits, params, positions = _many(4)
    params = [
        replace(one, temperature=0.0, num_top_logprobs=2 if b % 3 == 0 else None, logit_bias=((b, 90.0),) * (b % 2))
        for b, one in enumerate(params)
    ]
    chosen = []
    for sampler in (None, DeviceSampler(CPU, sorting_filters())):
        chooser = Chooser(vocabulary=VOCABULARY, tokenizer=None, device_sampler=sampler, kernels=None)
        for row, one in enumerate(params):
            chooser.admit(Admission(row=row, request_id="", sampling=one, num_cached_tokens=0, page_ids=b""))
        chosen.append(chooser.choose(logits, range(len(params)), params, positions))
    on_host, mixed = chosen
    assert mixed.token_ids_B.tolist() == on_host.token_ids_B.tolist()
    assert mixed.is_usable_B.all()
    assert mixed.logprobs == on_host.logprobs


def test_the_filters_are_called_as_flashinfer_declares_them() -> None:
    assert flashinfer.sampling.top_k_renorm_probs.__module__.startswith("flashinfer")
    with reference_kernels(is_recorded=False):
        kept = flashinfer_filters().top_k(torch.tensor([[0.1, 0.6, 0.3]]), torch.tensor([2], dtype=torch.int32))
    assert (kept > 0).tolist() == [[False, True, True]]


def test_both_kinds_of_filters_leave_the_same_tokens(device: torch.device) -> None:
    logits, params, positions = _many(6)
    samplers = [DeviceSampler(device, filters) for filters in (sorting_filters(), flashinfer_filters())]
    one, other = (sampler.sample(logits.to(device), params, positions)[0].tolist() for sampler in samplers)
    assert one == other
