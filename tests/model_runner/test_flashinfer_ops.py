from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from model_runner.flashinfer_ops import FlashInferOps
from model_runner.layers import RMSNorm, make_rotary
from model_runner.model_config import read_model_config
from model_runner.models.decoder import Decoder
from model_runner.models.registry import make_model
from model_runner.ops import Heads, TorchOps
from model_runner.weights import load_weights

from .bed import Bed
from .conftest import load_directory, save_tiny
from .reference_kernels import reference_kernels


@pytest.fixture
def _kernels() -> Iterator[None]:
    with reference_kernels(is_recorded=False):
        yield


@pytest.mark.parametrize("name", ["llama", "llama-biases", "llama-yarn-rope", "qwen3", "gemma3"])
@pytest.mark.usefixtures("_kernels")
def test_a_family_gives_the_logits_that_it_gives_in_torch(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path)
    fused: Decoder = make_model(read_model_config(tmp_path / "config.json"), torch.float32, FlashInferOps())
    load_weights(fused, tmp_path, lambda done, total: None)
    prompt = [(7 * i) % 199 for i in range(40)]
    logits, expected = (Bed(model).all_logits(prompt) for model in (fused, load_directory(tmp_path)))
    assert torch.allclose(logits, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_adding_and_norm_change_the_hidden_states_as_in_torch(dtype: torch.dtype, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, added = torch.randn(2, 5, 64, generator=generator).to(device, dtype)
    norm = RMSNorm(torch.randn(64, generator=generator).to(device, dtype), 1e-5)
    expected_hidden = hidden.clone()
    expected = TorchOps().add_norm(expected_hidden, added.clone(), norm)
    out = FlashInferOps().add_norm(hidden, added, norm)
    assert torch.equal(hidden, expected_hidden)
    assert torch.allclose(out.float(), expected.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("features", [64, 12])
def test_gating_is_that_of_torch_also_for_rows_that_the_kernels_can_not_read(
    features: int, device: torch.device
) -> None:
    x = torch.randn(3, 2 * features, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
    out = FlashInferOps().gated(x, "silu")
    assert torch.allclose(out.float(), TorchOps().gated(x, "silu").float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("has_norms", [False, True])
def test_heads_are_normalised_and_turned_as_in_torch(has_norms: bool, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    norms = [RMSNorm(torch.randn(64, generator=generator).to(device, torch.bfloat16), 1e-6) for _ in range(2)]
    q_norm, k_norm = norms if has_norms else (None, None)
    heads = Heads(num_heads=6, num_kv_heads=2, head_dim=64, q_norm=q_norm, k_norm=k_norm)
    with device:
        rotary = make_rotary(64, 10_000.0, None, torch.bfloat16)
    positions = torch.tensor([0, 3, 511, 4000], device=device)
    qkv = torch.randn(4, 10 * 64, generator=generator).to(device, torch.bfloat16)
    fused, torch_ops = FlashInferOps(), TorchOps()
    expected = torch_ops.rotated_heads(qkv.clone(), heads, torch_ops.angles(rotary, positions))
    for one, other in zip(fused.rotated_heads(qkv, heads, fused.angles(rotary, positions)), expected, strict=True):
        assert torch.allclose(one.float(), other.float(), atol=4e-2, rtol=2e-2)
