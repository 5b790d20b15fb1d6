from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from model_runner.attention.choice import make_backend
from model_runner.attention.flashinfer_backend import FlashInferAttention
from model_runner.device import resolve_device
from model_runner.errors import StartError

from .paged_cases import make_spec
from .reference_kernels import reference_kernels

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
HALF = make_spec(dtype=torch.bfloat16)


class _OnCpu(FlashInferAttention):
    """Takes a CUDA device's place where there is none."""

    def __init__(self, spec: object, device: torch.device, *, max_graph_rows: int) -> None:
        assert device == CUDA
        super().__init__(spec, CPU, max_graph_rows=max_graph_rows)  # type: ignore[arg-type]


@pytest.fixture
def _no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_runner.attention.flashinfer_backend.FlashInferAttention", _OnCpu)


@pytest.mark.usefixtures("_no_gpu_needed")
@pytest.mark.parametrize("name", ["auto", "flashinfer"])
def test_a_cuda_device_gets_flashinfer(name: str) -> None:
    with reference_kernels():
        assert isinstance(make_backend(name, HALF, CUDA, None), FlashInferAttention)


@pytest.mark.usefixtures("_no_gpu_needed")
@pytest.mark.parametrize(
    ("name", "spec", "device", "sentence"),
    [
        ("flashinfer", HALF, CPU, "--attention flashinfer needs a CUDA device"),
        ("torch", HALF, CUDA, "--attention torch computes on the CPU only"),
        ("auto", make_spec(), CUDA, r"can't compute in torch.float32; set --dtype bfloat16"),
        ("auto", replace(HALF, head_dim=80), CUDA, r"takes heads of 64, 128, 256 numbers, this model's have 80"),
        ("torch", replace(HALF, dtype=torch.float16), CPU, r"can't compute in torch.float16; set --dtype float32"),
    ],
)
def test_a_backend_that_can_not_serve_the_model_here_says_what_to_set(
    name: str, spec: object, device: torch.device, sentence: str
) -> None:
    with reference_kernels(), pytest.raises(StartError, match=sentence):
        make_backend(name, spec, device, None)  # type: ignore[arg-type]


def test_without_the_package_a_cuda_device_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_runner.attention.flashinfer_backend", None)
    with pytest.raises(StartError, match=r"pip install 'axil\[cuda\]', or set --device cpu"):
        make_backend("auto", HALF, CUDA, None)


def test_a_cuda_device_that_is_asked_for_and_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == CPU
    with pytest.raises(StartError, match="--device cuda needs a CUDA device"):
        resolve_device("cuda")


def test_without_the_package_auto_is_the_cpu_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert resolve_device("auto") == CUDA
    monkeypatch.setattr("model_runner.device.find_spec", lambda name: None)
    assert resolve_device("auto") == CPU
    assert "flashinfer-python is not installed" in caplog.text
