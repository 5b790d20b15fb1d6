"""The devices that the GPU path's tests run on: the CPU with reference kernels, and CUDA with the real ones."""

from __future__ import annotations

import pytest
import torch

CPU = torch.device("cpu")
NEEDS_CUDA = [
    pytest.mark.gpu,
    # FlashInfer compiles what a test is the first to use, and what other libraries warn of there is not ours.
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)]


def type_on(device: torch.device) -> torch.dtype:
    """The type that shows most: FlashInfer's kernels take no float32, the reference does."""
    return torch.float32 if device == CPU else torch.bfloat16
