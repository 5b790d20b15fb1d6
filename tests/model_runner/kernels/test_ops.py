from __future__ import annotations

import pytest
import torch
from torch import Tensor

from model_runner.kernels.library import Library
from model_runner.kernels.ops import KernelOps
from model_runner.layers import RMSNorm, make_rotary
from model_runner.ops import Heads, TorchOps

SIZES = [1, 7, 8, 10, 15, 16, 48, 576, 1001]
NUM_TOKENS = [1, 3, 40]


@pytest.fixture(params=[1, 3])
def ops(request: pytest.FixtureRequest, library: Library) -> KernelOps:
    library.set_threads(request.param)
    request.addfinalizer(lambda: library.set_threads(1))
    return KernelOps(library)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adding_and_normalising_is_what_torch_gives(
    ops: KernelOps, num_tokens: int, size: int, dtype: torch.dtype
) -> None:
    hidden, added, weight = _random(num_tokens, size), _random(num_tokens, size, seed=1), _random(size).to(dtype)
    expected_hidden = hidden + added
    expected = TorchOps().add_norm(expected_hidden, None, RMSNorm(weight.float(), 1e-5))
    assert torch.allclose(ops.add_norm(hidden, added, RMSNorm(weight, 1e-5)), expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(hidden, expected_hidden)
    assert torch.allclose(ops.add_norm(hidden, None, RMSNorm(weight, 1e-5)), expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(hidden, expected_hidden)


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize("head_dim", [2, 10, 16, 64, 80])
@pytest.mark.parametrize("norm_dtype", [None, torch.float32, torch.bfloat16])
def test_heads_are_normalised_and_turned_as_torch_does(
    ops: KernelOps, num_tokens: int, head_dim: int, norm_dtype: torch.dtype | None
) -> None:
    norms = None if norm_dtype is None else [_random(head_dim, seed=seed).to(norm_dtype) for seed in (5, 6)]
    shape = {"num_heads": 4, "num_kv_heads": 2, "head_dim": head_dim}
    qkv, positions = _random(num_tokens, 8 * head_dim), torch.arange(num_tokens) * 97
    rotary = make_rotary(head_dim, 10_000.0, None, torch.float32)
    exact, given = Heads(**shape), Heads(**shape)
    if norms is not None:
        exact = Heads(**shape, q_norm=RMSNorm(norms[0].float(), 1e-6), k_norm=RMSNorm(norms[1].float(), 1e-6))
        given = Heads(**shape, q_norm=RMSNorm(norms[0], 1e-6), k_norm=RMSNorm(norms[1], 1e-6))
    expected = TorchOps().rotated_heads(qkv.clone(), exact, rotary.angles(positions))
    for one, other in zip(ops.rotated_heads(qkv, given, ops.angles(rotary, positions)), expected, strict=True):
        assert torch.allclose(one, other, atol=2e-5, rtol=1e-5)


def test_a_softcap_bounds_logits_as_torch_does(ops: KernelOps) -> None:
    logits = _random(5, 199) * 50
    expected = TorchOps().softcapped(logits.clone(), 30.0)
    assert torch.allclose(ops.softcapped(logits, 30.0), expected, atol=1e-5, rtol=1e-5)


def test_nan_is_not_lost(ops: KernelOps) -> None:
    broken = torch.full((1, 16), float("nan"))
    assert ops.softcapped(broken.clone(), 3.0).isnan().all()
    assert ops.add_norm(broken, None, RMSNorm(torch.ones(16), 1e-5)).isnan().all()


def test_a_token_gets_the_same_bits_whoever_stands_beside_it(ops: KernelOps) -> None:
    x, weight = _random(40, 1001), _random(1001)
    whole = ops.add_norm(x.clone(), None, RMSNorm(weight, 1e-5))
    assert torch.equal(ops.add_norm(x[7:8].clone(), None, RMSNorm(weight, 1e-5)), whole[7:8])
    rotary = make_rotary(10, 10_000.0, None, torch.float32)
    positions = torch.arange(40)
    assert torch.equal(ops.angles(rotary, positions[7:8]).cos, ops.angles(rotary, positions).cos[7:8])
