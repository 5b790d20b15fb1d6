from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model_runner.kernels.library import Library
from model_runner.kernels.linear import ALL_KINDS, Activations, Format, Gate, Kind, LinearKernels, PackedWeight

FLOAT32, BFLOAT16 = Kind(format=Format.FLOAT32), Kind(format=Format.BFLOAT16)
ACTIVATIONS = {Gate.SILU: F.silu, Gate.GELU_TANH: functools.partial(F.gelu, approximate="tanh")}
KINDS = {kind.name: kind for kind in ALL_KINDS}
SHAPES = [(1, 32), (16, 64), (49, 96), (130, 544)]
NUM_TOKENS = [1, 2, 3, 4, 5, 6, 7, 13, 97, 195]


@pytest.fixture(
    params=[("library", 1), ("library", 3), ("avx2", 1), ("avx512_in_plain_c", 1), ("amx_in_plain_c", 1)], ids=str
)
def kernels(request: pytest.FixtureRequest) -> LinearKernels:
    name, threads = request.param
    library: Library = request.getfixturevalue(name)
    library.set_threads(threads)
    request.addfinalizer(lambda: library.set_threads(1))
    return LinearKernels(library)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, kernels: LinearKernels) -> Kind:
    kind = KINDS[request.param]
    if kind not in kernels.kinds:
        pytest.skip("this CPU multiplies no bfloat16")
    return kind


def _is_rounded_to_bfloat16(kernels: LinearKernels, kind: Kind) -> bool:
    if kind.format is Format.BFLOAT16:
        return kernels.has_bfloat16_products
    return kind.activations is Activations.BFLOAT16


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _stored(weight: PackedWeight) -> Tensor:
    return weight.rows(torch.arange(weight.num_outputs), torch.float32)


def _rounded_to_bytes(x_TK: Tensor, group: int | None) -> Tensor:
    grouped = x_TK.double().unflatten(-1, (-1, group or x_TK.shape[-1]))
    scale = grouped.abs().amax(-1, keepdim=True) / 127
    return ((grouped / scale).round() * scale).flatten(1)


def _rotated(rows: Tensor) -> Tensor:
    """By Sylvester's matrices, 64 or 32 wide; twice so gives the rows themselves."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < (32 if rows.shape[-1] % 64 else 64):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (rows.double().unflatten(-1, (-1, len(matrix))) @ matrix / len(matrix) ** 0.5).flatten(1)


def _seen(kernels: LinearKernels, kind: Kind, x_TK: Tensor) -> Tensor:
    """What tokens are rounded to."""
    if kind.activations is not Activations.BYTES:
        return (x_TK.bfloat16() if _is_rounded_to_bfloat16(kernels, kind) else x_TK).double()
    if kind.format is Format.INT8:
        return _rotated(_rounded_to_bytes(_rotated(x_TK), None))
    return _rounded_to_bytes(x_TK, kind.group_columns)


@pytest.mark.parametrize(("num_outputs", "num_columns"), SHAPES)
def test_products_are_those_of_the_stored_weights_and_the_same_alone_and_in_a_batch(
    kernels: LinearKernels, kind: Kind, num_outputs: int, num_columns: int
) -> None:
    weight = kernels.make(num_outputs, num_columns, kind, has_bias=True)
    bias = _random(num_outputs, seed=3)
    weight.write(0, _random(num_outputs, num_columns))
    weight.write_bias(0, bias)
    all_x = _random(max(NUM_TOKENS), num_columns, seed=1)
    expected = (_seen(kernels, kind, all_x) @ _stored(weight).double().T + bias.double()).float()
    alone = torch.cat([weight(x) for x in all_x.split(1)])
    # A number in the middle between two bytes may be rounded to the other one.
    tolerance = 0.02 if kind.activations is Activations.BYTES else 2e-4
    assert torch.allclose(alone, expected, atol=tolerance, rtol=1e-4)
    for num_tokens in NUM_TOKENS:
        assert torch.equal(weight(all_x[:num_tokens]), alone[:num_tokens]), num_tokens


@pytest.mark.parametrize(("num_outputs", "opening"), [(1, Gate.SILU), (49, Gate.SILU), (49, Gate.GELU_TANH)])
def test_a_gate_opens_what_stands_beside_it_the_same_alone_and_in_a_batch(
    kernels: LinearKernels, kind: Kind, num_outputs: int, opening: Gate
) -> None:
    weight = kernels.make(num_outputs, 64, kind, gate=opening)
    plain = [kernels.make(num_outputs, 64, kind) for _ in range(2)]
    for half, one in enumerate(plain):
        weight.write(0, _random(num_outputs, 64, seed=half), half=half)
        one.write(0, _random(num_outputs, 64, seed=half))
    x = _random(7, 64, seed=3)
    gate, up = (one(x) for one in plain)
    assert torch.allclose(weight(x), ACTIVATIONS[opening](gate) * up, atol=1e-4, rtol=1e-5)
    for num_tokens in (1, 2, 3, 4):
        assert torch.equal(weight(x[:num_tokens]), weight(x)[:num_tokens]), num_tokens


@pytest.mark.parametrize("opening", [Gate.SILU, Gate.GELU_TANH])
def test_gates_are_what_torch_gives_from_the_smallest_to_the_largest(kernels: LinearKernels, opening: Gate) -> None:
    weight = kernels.make(50, 2, FLOAT32, gate=opening)
    gates, ups = _random(50) * torch.logspace(-3, 3, 50), _random(50, seed=1)
    weight.write(0, torch.stack([gates, torch.zeros(50)], 1), half=0)
    weight.write(0, torch.stack([ups, torch.zeros(50)], 1), half=1)
    expected = ACTIVATIONS[opening](gates) * ups
    assert torch.allclose(weight(torch.tensor([[1.0, 0.0]])), expected, atol=1e-6, rtol=3e-5)
    assert weight(torch.tensor([[float("nan"), 0.0]])).isnan().all()


@pytest.mark.parametrize("num_columns", [1, 7, 10, 31, 257, 600])
def test_any_number_of_columns_fits_float32_and_any_even_one_bfloat16(kernels: LinearKernels, num_columns: int) -> None:
    for kind in (FLOAT32, BFLOAT16):
        if kind.obstacle(num_columns) is not None:
            assert num_columns % 2 == 1
            continue
        weight = kernels.make(19, num_columns, kind)
        weight.write(0, _random(19, num_columns))
        x = _random(9, num_columns, seed=1)
        used = x if kind is FLOAT32 or not kernels.has_bfloat16_products else x.bfloat16().float()
        assert torch.allclose(weight(x), used @ _stored(weight).T, atol=1e-4, rtol=1e-4)
        assert torch.allclose(weight(x.bfloat16()), x.bfloat16().float() @ _stored(weight).T, atol=1e-4, rtol=1e-4)


def test_stored_weights_are_as_near_as_their_type_allows(kernels: LinearKernels, kind: Kind) -> None:
    values = _random(40, 128)
    weight = kernels.make(40, 128, kind)
    weight.write(0, values[:9])
    weight.write(9, values[9:].bfloat16())
    values[9:] = values[9:].bfloat16().float()
    stored = _stored(weight)
    if kind.format is Format.FLOAT32:
        assert torch.equal(stored, values)
        return
    if kind.format is Format.BFLOAT16:
        assert torch.equal(stored, values.bfloat16().float())
        return
    if kind.format is Format.INT8 and kind.activations is Activations.BYTES:
        stored, values = _rotated(stored), _rotated(values)
    groups = values.unflatten(-1, (-1, kind.group_columns or 128))
    if kind.format is Format.INT8:
        steps = groups.abs().amax(-1, keepdim=True) / 127
        assert ((stored - values).unflatten(-1, groups.shape[1:]).abs() <= 0.51 * steps + 1e-6).all()
        return
    from_ends = (groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)) / 15
    plain = ((groups - groups.amin(-1, keepdim=True)) / from_ends).round() * from_ends + groups.amin(-1, keepdim=True)
    assert (stored - values).square().mean() < (plain.flatten(1) - values).square().mean()


@pytest.mark.parametrize("num_columns", [96, 128])
def test_a_column_far_larger_than_the_others_takes_little_of_their_8_bits(
    kernels: LinearKernels, num_columns: int
) -> None:
    weight = kernels.make(40, num_columns, Kind(format=Format.INT8, activations=Activations.BYTES))
    rows, x = _random(40, num_columns), _random(30, num_columns, seed=1)
    rows[:, 7] *= 20
    x[:, 5] *= 60
    weight.write(0, rows)
    exact = x.double() @ rows.double().T
    plain = _rounded_to_bytes(x, None) @ _rounded_to_bytes(rows, None).T
    error, error_of_plain = ((products - exact).square().mean().sqrt() for products in (weight(x), plain))
    assert error < error_of_plain / 2


def test_a_token_with_nan_or_infinity_gives_no_numbers_and_leaves_the_others_alone(
    kernels: LinearKernels, kind: Kind
) -> None:
    weight = kernels.make(20, 64, kind)
    weight.write(0, _random(20, 64))
    x = _random(4, 64, seed=1)
    good = weight(x)
    x[1, 3], x[2, 40] = float("nan"), float("inf")
    bad = weight(x)
    assert torch.equal(bad[[0, 3]], good[[0, 3]])
    assert not bad[[1, 2]].isfinite().any()


def test_registers_are_shared_with_torch_which_uses_them_too(library: Library) -> None:
    weight = LinearKernels(library).make(64, 96, BFLOAT16)
    weight.write(0, _random(64, 96))
    x, a, b = _random(40, 96, seed=1), _random(128, 256, seed=2).bfloat16(), _random(256, 128, seed=3).bfloat16()
    ours, torchs = weight(x), a @ b
    for _ in range(20):
        assert torch.equal(weight(x), ours)
        assert torch.equal(a @ b, torchs)
        assert torch.equal(weight(x[:1]), ours[:1])


def test_zeros_stay_zeros(kernels: LinearKernels, kind: Kind) -> None:
    weight = kernels.make(20, 64, kind)
    weight.write(0, torch.zeros(20, 64))
    assert torch.equal(weight(_random(3, 64)), torch.zeros(3, 20))
    weight.write(0, _random(20, 64))
    assert torch.equal(weight(torch.zeros(3, 64)), torch.zeros(3, 20))


def test_rows_are_looked_up_in_any_order(kernels: LinearKernels) -> None:
    values = _random(50, 32)
    for kind in (FLOAT32, BFLOAT16):
        weight = kernels.make(50, 32, kind)
        weight.write(0, values)
        ids = torch.tensor([49, 0, 7, 7, 16])
        assert torch.equal(weight.rows(ids, torch.bfloat16), values[ids].bfloat16())
