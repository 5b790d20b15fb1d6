from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model_runner import flashinfer_probe
from model_runner.attention.backend import AttentionSpec
from model_runner.attention.choice import make_backend, uses_flashinfer
from model_runner.attention.flashinfer_backend import FlashInferAttention
from model_runner.attention.triton_backend import TritonAttention
from model_runner.config import RunnerConfig
from model_runner.device import resolve_device
from model_runner.errors import StartError
from model_runner.flashinfer_ops import FlashInferOps
from model_runner.implementation import _torch_ops

from .paged_cases import make_spec
from .reference_kernels import reference_kernels

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
HALF = make_spec(dtype=torch.bfloat16)


class _OnCpu(FlashInferAttention):
    """Takes a CUDA device's place where there is none."""

    def __init__(self, spec: object, device: torch.device, *, max_graph_rows: int) -> None:
        assert device == CUDA
        super().__init__(spec, CPU, max_graph_rows=max_graph_rows)  # type: ignore[arg-type]


class _TritonOnCpu(TritonAttention):
    """The same, in the interpreter."""

    def __init__(self, spec: object, device: torch.device, *, is_deterministic: bool) -> None:
        super().__init__(spec, CPU, is_deterministic=is_deterministic)  # type: ignore[arg-type]


@pytest.fixture
def _no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_runner.attention.flashinfer_backend.FlashInferAttention", _OnCpu)
    monkeypatch.setattr("model_runner.attention.triton_backend.TritonAttention", _TritonOnCpu)
    monkeypatch.setattr(flashinfer_probe, "obstacle", lambda device: None)


@pytest.mark.usefixtures("_no_gpu_needed")
@pytest.mark.parametrize("name", ["auto", "flashinfer"])
def test_a_cuda_device_gets_flashinfer(name: str) -> None:
    with reference_kernels():
        assert isinstance(make_backend(name, HALF, CUDA, None), FlashInferAttention)


@pytest.mark.usefixtures("_no_gpu_needed")
@pytest.mark.parametrize("spec", [replace(HALF, head_dim=80), make_spec()], ids=["head_dim", "float32"])
def test_what_flashinfer_does_not_take_gets_triton_and_the_log_says_why(
    spec: AttentionSpec, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), reference_kernels():
        assert isinstance(make_backend("auto", spec, CUDA, None), TritonAttention)
    assert "attention in Triton: --attention flashinfer " in caplog.text


@pytest.mark.usefixtures("_no_gpu_needed")
def test_without_flashinfer_or_where_asked_for_it_is_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_backend("triton", HALF, CUDA, None), TritonAttention)
    monkeypatch.setitem(sys.modules, "model_runner.attention.flashinfer_backend", None)
    assert isinstance(make_backend("auto", HALF, CUDA, None), TritonAttention)


@pytest.mark.usefixtures("_no_gpu_needed")
@pytest.mark.parametrize(
    ("flags", "spec", "is_used"),
    [
        ({}, HALF, True),
        ({"attention": "flashinfer"}, replace(HALF, dtype=torch.float16, head_dim=256), True),
        ({"attention": "triton"}, HALF, False),
        ({"deterministic": True}, HALF, False),
        ({}, make_spec(), False),
        ({}, replace(HALF, head_dim=80), False),
    ],
    ids=["auto", "flashinfer", "triton", "deterministic", "float32", "head_dim"],
)
def test_flashinfer_serves_attention_and_all_else_or_nothing(
    flags: dict[str, object], spec: AttentionSpec, is_used: bool
) -> None:
    config = RunnerConfig(**flags)  # type: ignore[arg-type]
    assert uses_flashinfer(config.attention, spec, CUDA, is_deterministic=config.deterministic) is is_used
    assert isinstance(_torch_ops(config, spec, CUDA), FlashInferOps) is is_used
    assert not isinstance(_torch_ops(config, spec, CPU), FlashInferOps)


@pytest.mark.usefixtures("_no_gpu_needed")
def test_where_its_kernels_can_not_be_compiled_auto_is_triton_and_flashinfer_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flashinfer_probe, "obstacle", lambda device: "RuntimeError: Could not find nvcc")
    assert not uses_flashinfer("auto", HALF, CUDA, is_deterministic=False)
    with caplog.at_level(logging.INFO):
        assert isinstance(make_backend("auto", HALF, CUDA, None), TritonAttention)
    assert "Could not find nvcc" in caplog.text
    with pytest.raises(StartError, match=r"Could not find nvcc.*CUDA_HOME.*--attention triton needs none of it"):
        make_backend("flashinfer", HALF, CUDA, None)


class _NotWritable:
    """Fails the import of FlashInfer as a home directory does that can't be written to."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "model_runner.attention.flashinfer_backend":
            raise PermissionError(13, "Permission denied", "/root/.cache/flashinfer")


def test_a_home_directory_that_can_not_be_written_to_is_named_with_the_variable_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "model_runner.attention.flashinfer_backend")
    monkeypatch.setattr(sys, "meta_path", [_NotWritable(), *sys.meta_path])
    with pytest.raises(StartError, match=r"/root/\.cache/flashinfer.*FLASHINFER_WORKSPACE_BASE"):
        make_backend("flashinfer", HALF, CUDA, None)


def test_the_probe_runs_a_kernel_and_tells_what_it_failed_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(name: str) -> None:
        raise RuntimeError(
            "Ninja build failed. Ninja output:\n[1/2] nvcc -c silu.cu\nsilu.cu:1: fatal error: no cuda.h\n"
        )

    with reference_kernels():
        assert flashinfer_probe.obstacle.__wrapped__(CPU) is None
    monkeypatch.setattr("flashinfer.activation.get_act_and_mul_module", no_compiler)
    assert flashinfer_probe.obstacle.__wrapped__(CPU) == "RuntimeError: silu.cu:1: fatal error: no cuda.h"


def test_ninja_is_found_beside_a_python_whose_environment_is_not_activated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ninja").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    with reference_kernels():
        flashinfer_probe.obstacle.__wrapped__(CPU)
    assert os.environ["PATH"] == f"/nowhere:{tmp_path}"


@pytest.mark.usefixtures("_no_gpu_needed")
def test_in_deterministic_mode_it_is_triton_with_a_fixed_order() -> None:
    backend = make_backend("auto", HALF, CUDA, None, is_deterministic=True)
    assert isinstance(backend, TritonAttention)
    assert backend.capabilities().is_order_fixed


def test_triton_on_a_cpu_is_for_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_runner.attention.triton_backend.is_interpreted", lambda: False)
    with pytest.raises(StartError, match="--attention triton needs a CUDA device"):
        make_backend("triton", HALF, CPU, None)


@pytest.mark.usefixtures("_no_gpu_needed")
@pytest.mark.parametrize(
    ("name", "spec", "device", "sentence"),
    [
        ("flashinfer", HALF, CPU, "--attention flashinfer needs a CUDA device"),
        ("torch", HALF, CUDA, "--attention torch computes on the CPU only"),
        ("flashinfer", make_spec(), CUDA, r"can't compute in torch.float32; set --dtype bfloat16"),
        ("flashinfer", replace(HALF, head_dim=80), CUDA, r"takes heads of 64, 128, 256 numbers, this model's have 80"),
        (
            "auto",
            replace(HALF, head_dim=512),
            CUDA,
            r"flashinfer takes .* and .*triton takes heads of 2 to 256 numbers",
        ),
        ("flash", HALF, CUDA, "--attention flash is not known"),
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
    monkeypatch.setitem(sys.modules, "model_runner.attention.triton_backend", None)
    with pytest.raises(StartError, match=r"pip install 'axil\[cuda\]', or set --device cpu"):
        make_backend("auto", HALF, CUDA, None)
    with pytest.raises(StartError, match="--attention triton needs the package triton"):
        make_backend("triton", HALF, CUDA, None)


def test_a_cuda_device_that_is_asked_for_and_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == CPU
    reason = "The NVIDIA driver on your system is too old (found version 11040).\nPlease update"

    def too_old() -> None:
        raise RuntimeError(reason)

    monkeypatch.setattr(torch.cuda, "init", too_old)
    with pytest.raises(
        StartError, match=r"--device cuda needs a CUDA device .*driver .* is too old \(.*\)\); set it to"
    ):
        resolve_device("cuda")


def test_a_cuda_device_that_can_not_compute_is_an_error_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_image(*args: object, device: torch.device) -> None:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nCompile with")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch, "ones", no_image)
    with pytest.raises(StartError, match=r"cuda:0 can't compute .*no kernel image.*execution on the device\); choose"):
        resolve_device("cuda")


def test_without_the_package_auto_is_the_cpu_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr("model_runner.device._tried", lambda device: device)
    assert resolve_device("auto") == CUDA
    monkeypatch.setattr("model_runner.device.find_spec", lambda name: None)
    assert resolve_device("auto") == CPU
    assert "flashinfer-python is not installed" in caplog.text
