"""Which attention backend serves a model on a device, and why another one can't. Knows no weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from model_runner import flashinfer_probe
from model_runner.errors import StartError
from model_runner.kernels.library import Library

from .backend import AttentionBackend, AttentionSpec, Capabilities
from .cpu_backend import CpuAttention
from .torch_backend import TorchAttention

if TYPE_CHECKING:
    from .flashinfer_backend import FlashInferAttention

log = logging.getLogger(__name__)

_NOT_FIXED = "--attention flashinfer chooses the order of a token's sums by the mean length of a batch's chunks"

INSTALL = "pip install 'axil[cuda]'"


def make_backend(
    name: str,
    spec: AttentionSpec,
    device: torch.device,
    library: Library | None,
    *,
    max_graph_rows: int = 0,
    is_deterministic: bool = False,
) -> AttentionBackend[Any]:
    """The backend of `--attention`; "auto" is the first that suits. `library` are the CPU's kernels.

    `max_graph_rows` is the most decode rows that a recorded step will have, 0 where none will be recorded. With
    `is_deterministic` it is one whose sums run in an order of absolute positions.

    Raises:
        StartError: it can't serve this model on this device; names the flag.
    """
    backend: AttentionBackend[Any]
    match name, device.type:
        case "auto", "cuda":
            name, backend = _first_on_cuda(spec, device, max_graph_rows, is_deterministic=is_deterministic)
        case "cpu" | "auto", "cpu" if library is not None and (name == "cpu" or _suits_kernels(spec)):
            name, backend = "cpu", CpuAttention(spec, library)
        case "cpu", _:
            raise StartError(
                f"--attention cpu needs --device cpu, --kernels auto and kernels that could be built ({device}); "
                "set it to auto"
            )
        case "torch" | "auto", "cpu" if is_deterministic:
            raise StartError(
                "--deterministic on a CPU needs the kernels in C++ for attention too (--kernels auto, a compiler, "
                "--attention auto); leave it out for plain torch"
            )
        case "torch" | "auto", "cpu":
            name, backend = "torch", TorchAttention(spec)
        case "flashinfer", "cuda" if is_deterministic:
            raise StartError(f"{_NOT_FIXED}; set it to auto or triton, or leave --deterministic out")
        case "flashinfer", "cuda":
            backend = _flashinfer(spec, device)(spec, device, max_graph_rows=max_graph_rows)
        case "triton", _:
            backend = _triton(spec, device, is_deterministic=is_deterministic)
        case "torch", _:
            raise StartError(f"--attention torch computes on the CPU only; set it to auto, or --device cpu ({device})")
        case "flashinfer", _:
            raise StartError("--attention flashinfer needs a CUDA device and there is none; set it to auto")
        case _:
            raise StartError(f"--attention {name} is not known; set it to auto, cpu, torch, flashinfer or triton")
    _check(name, spec, backend.capabilities())
    log.info("attention=%s device=%s", name, device)
    return backend


def uses_flashinfer(name: str, spec: AttentionSpec, device: torch.device, *, is_deterministic: bool) -> bool:
    """Whether FlashInfer serves this model on this device: its attention, and all else of it, or nothing."""
    if device.type != "cuda" or name not in ("auto", "flashinfer") or is_deterministic:
        return False
    try:
        _flashinfer(spec, device)
    except StartError:
        return False
    return True


def _first_on_cuda(
    spec: AttentionSpec, device: torch.device, max_graph_rows: int, *, is_deterministic: bool
) -> tuple[str, AttentionBackend[Any]]:
    """FlashInfer, else Triton; what is against the first is logged, and what is against both an error."""
    try:
        if is_deterministic:
            raise StartError(_NOT_FIXED)
        return "flashinfer", _flashinfer(spec, device)(spec, device, max_graph_rows=max_graph_rows)
    except StartError as error:
        reason = error
    try:
        backend = _triton(spec, device, is_deterministic=is_deterministic)
    except StartError as error:
        raise StartError(f"{reason}; and {error}") from error
    log.info("attention in Triton: %s", reason)
    return "triton", backend


def _flashinfer(spec: AttentionSpec, device: torch.device) -> type[FlashInferAttention]:
    """The backend's class, which takes seconds to import and is there with the extra only.

    Raises:
        StartError: it is not there, does not take the model, or its kernels can't be had.
    """
    try:
        from .flashinfer_backend import FlashInferAttention
    except ImportError as error:
        raise StartError(
            f"--attention flashinfer needs the package flashinfer-python: {INSTALL}, or set --device cpu ({error})"
        ) from error
    except (OSError, RuntimeError) as error:
        raise StartError(_no_kernels(flashinfer_probe.said(error))) from error
    _check("flashinfer", spec, FlashInferAttention.CAPABILITIES)
    obstacle = flashinfer_probe.obstacle(device)
    if obstacle is not None:
        raise StartError(_no_kernels(obstacle))
    return FlashInferAttention


def _no_kernels(reason: str) -> str:
    return (
        f"--attention flashinfer has no kernels here ({reason}). {flashinfer_probe.REMEDY}; "
        "--attention triton needs none of it"
    )


def _triton(spec: AttentionSpec, device: torch.device, *, is_deterministic: bool) -> AttentionBackend[Any]:
    try:
        from .triton_backend import TritonAttention, is_interpreted  # is there with torch's builds for CUDA only
    except ImportError as error:
        raise StartError(
            f"--attention triton needs the package triton, which comes with torch's builds for CUDA ({error}); "
            "set it to auto"
        ) from error
    if device.type == "cpu" and not is_interpreted():
        raise StartError("--attention triton needs a CUDA device and there is none; set it to auto")
    backend = TritonAttention(spec, device, is_deterministic=is_deterministic)
    _check("triton", spec, backend.capabilities())
    return backend


def _suits_kernels(spec: AttentionSpec) -> bool:
    """Whether the kernels take a model; says what is lost where they don't."""
    try:
        _check("cpu", spec, CpuAttention.CAPABILITIES)
    except StartError as error:
        log.warning("attention in plain torch, which is several times slower: %s", error)
        return False
    return True


def _check(name: str, spec: AttentionSpec, can: Capabilities) -> None:
    if spec.dtype not in can.dtypes:
        cure = str(can.dtypes[0]).removeprefix("torch.")
        raise StartError(f"--attention {name} can't compute in {spec.dtype}; set --dtype {cure}")
    if can.page_tokens is not None and spec.page_tokens not in can.page_tokens:
        raise StartError(
            f"--attention {name} takes --page-tokens {' or '.join(map(str, can.page_tokens))}, got {spec.page_tokens}"
        )
    if can.head_dims is not None and spec.head_dim not in can.head_dims:
        raise StartError(
            f"--attention {name} takes heads of {_listed(can.head_dims)} numbers, this model's have "
            f"{spec.head_dim}; set --attention auto or --device cpu, or serve another model"
        )


def _listed(numbers: Sequence[int]) -> str:
    """All of a few, the ends of many."""
    if len(numbers) <= 8:
        return ", ".join(map(str, numbers))
    return f"{numbers[0]} to {numbers[-1]}"
