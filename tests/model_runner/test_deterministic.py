"""The deterministic mode of the GPU path, on the CPU: blocked products, plain ops, Triton's interpreter.

Torch's sine, exponential and the like have other last bits on a CPU for what is left over when an array is cut into
vectors, so the model's dimensions leave nothing over; and numpy, which multiplies tiles in the interpreter, sums a row
by its place in the tile, so it is replaced. A GPU has no such rest, and its tensor cores no such places.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model_runner.attention.choice import make_backend
from model_runner.attention.triton_backend import TritonAttention
from model_runner.config import RunnerConfig, RunnerLaunch
from model_runner.errors import StartError
from model_runner.invariant import BLOCK_ROWS, BlockedLinear, blocked
from model_runner.kernels.library import Library
from model_runner.kv_pool import CPU
from model_runner.layers import Linear
from model_runner.load import load

from .bed import Bed, greedy
from .conftest import load_directory, save_tiny
from .paged_cases import make_spec


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(96, 320, generator=generator).to(dtype), torch.randn(96, generator=generator).to(dtype)
    x = torch.randn(2 * BLOCK_ROWS + 5, 320, generator=generator).to(dtype)
    linear = BlockedLinear(weight, bias)
    whole = linear(x)
    assert whole.shape == (len(x), 96)
    for start, end in [(0, 1), (7, 8), (3, 130), (100, 101), (200, 261), (129, 260)]:
        assert torch.equal(linear(x[start:end]), whole[start:end])
    expected = Linear(weight, bias)(x)
    assert (whole - expected).abs().max() <= 1e-2 * expected.abs().max()


@pytest.fixture
def _rows_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(a: NDArray[Any], b: NDArray[Any], dtype: Any) -> NDArray[Any]:  # noqa: ANN401 - numpy's
        result: NDArray[Any] = np.einsum("mk,kn->mn", a, b, dtype=dtype)
        return result

    monkeypatch.setattr(np, "matmul", product)


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_cached_cut_in_chunks_or_shares_a_batch_gives_the_same_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    save_tiny("packable", tmp_path)
    model = load_directory(tmp_path, dtype)
    model.pack(blocked)
    bed = Bed(model, new_backend=partial(TritonAttention, device=CPU, is_deterministic=True))
    prompt = [(7 * i) % 199 for i in range(40)]
    (whole,) = bed.generate([greedy(prompt)], 3)
    assert bed.generate([greedy(prompt)], 3, chunk_tokens=13)[0].logprobs == whole.logprobs
    together = bed.generate([greedy([5, 6, 7]), greedy(prompt)], 3)
    assert together[1].logprobs == whole.logprobs
    # What was decoded is cached too.
    longer = prompt + whole.token_ids[:2]
    (warm,) = bed.generate([greedy(longer, pages=whole.pages[:2], num_cached_tokens=32)], 1)
    assert warm.logprobs == whole.logprobs[2:]


def test_on_a_cpu_the_kernels_compute_so_anyway_and_say_it(
    library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny("llama", tmp_path)
    launch = RunnerLaunch(
        run_dir="",
        weights=str(tmp_path),
        model_config=str(tmp_path / "config.json"),
        tokenizer="",
        config=RunnerConfig(deterministic=True, max_total_tokens=640, threads=1),
    )
    with caplog.at_level(logging.INFO):
        load(launch, lambda done, total: None)
    assert "--deterministic changes nothing" in caplog.text
    for changes, message in (
        ({"kernels": "off"}, "needs the kernels in C"),
        ({"model_impl": "transformers"}, "own code"),
    ):
        other = replace(launch, config=replace(launch.config, **changes))
        with pytest.raises(StartError, match=f"--deterministic .*{message}"):
            load(other, lambda done, total: None)
    torch.set_num_threads(1)


def test_flashinfer_and_graphs_are_refused_with_it() -> None:
    half = make_spec(dtype=torch.bfloat16)
    with pytest.raises(StartError, match=r"--attention flashinfer chooses .*; set it to auto or triton"):
        make_backend("flashinfer", half, torch.device("cuda", 0), None, is_deterministic=True)
    assert RunnerConfig(deterministic=True).graph_sizes() == ()
    with pytest.raises(ValueError, match=r"--deterministic records no graphs; .* got '1,2'"):
        RunnerConfig(deterministic=True, cuda_graph_sizes="1,2")
