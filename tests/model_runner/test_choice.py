from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from model_runner.attention.backend import AttentionSpec
from model_runner.attention.choice import make_backend
from model_runner.attention.cpu_backend import CpuAttention
from model_runner.attention.torch_backend import TorchAttention
from model_runner.errors import StartError
from model_runner.kernels.library import Library
from model_runner.kv_pool import CPU

SPEC = AttentionSpec(
    num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, scale=1.0, dtype=torch.float32, page_tokens=16
)


def test_auto_takes_the_kernels_where_there_are_some_and_torch_where_not(library: Library) -> None:
    assert isinstance(make_backend("auto", SPEC, CPU, library), CpuAttention)
    assert isinstance(make_backend("cpu", SPEC, CPU, library), CpuAttention)
    assert isinstance(make_backend("auto", SPEC, CPU, None), TorchAttention)
    assert isinstance(make_backend("torch", SPEC, CPU, library), TorchAttention)


def test_pages_that_the_kernels_do_not_take_go_to_torch_with_a_line_that_says_so(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    spec = replace(SPEC, page_tokens=4)
    assert isinstance(make_backend("auto", spec, CPU, library), TorchAttention)
    assert "--page-tokens 16" in caplog.text and "slower" in caplog.text
    with pytest.raises(StartError, match="--page-tokens 16"):
        make_backend("cpu", spec, CPU, library)


def test_kernels_that_are_asked_for_and_not_there_stop_the_start() -> None:
    with pytest.raises(StartError, match="--attention cpu needs"):
        make_backend("cpu", SPEC, CPU, None)
