from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from model_runner import layers
from model_runner.layers import Linear, PackedLinear, can_pack, packed
from model_runner.models.decoder import Decoder

from .bed import Bed, assert_same, greedy
from .conftest import load_directory, save_tiny


@pytest.mark.parametrize("num_rows", [1, 2, 24, 300])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_packed_layer_computes_what_the_plain_one_does(num_rows: int, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(96, 48, generator=generator), torch.randn(num_rows, 48, generator=generator)
    plain = Linear(weight, torch.randn(96, generator=generator) if has_bias else None)
    layer = packed(plain)
    assert isinstance(layer, PackedLinear)
    assert torch.allclose(layer(x), plain(x), atol=1e-5)


def test_a_packed_model_gives_the_tokens_of_the_plain_one(tiny: Decoder, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    model = load_directory(tmp_path)
    model.pack()
    assert all(isinstance(layer.down, PackedLinear) for layer in model.layers)
    for own, expected in zip(*(Bed(one).generate([greedy([5, 9, 13])] * 3, 8) for one in (model, tiny)), strict=True):
        assert_same(own, expected)


def test_a_weight_too_large_to_be_held_twice_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "MAX_PACKED_BYTES", 1000)
    linear = Linear(torch.zeros(16, 16), None)
    assert packed(linear) is linear


def test_a_type_that_the_cpu_can_not_pack_stays_plain_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    can_pack.cache_clear()
    linear = Linear(torch.zeros(16, 16, dtype=torch.int32), None)
    with caplog.at_level(logging.INFO):
        assert packed(linear) is linear
        assert packed(linear) is linear
    assert len(caplog.records) == 1
