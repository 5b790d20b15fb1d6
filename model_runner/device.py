"""Which device computes, what it has free, and when what was queued on it has run. Knows no model and no pages."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import Protocol

import torch

from .errors import StartError
from .host import free_memory_bytes
from .ranks import Ranks

log = logging.getLogger(__name__)


def has_flashinfer() -> bool:
    """Whether the package of GPU kernels is installed."""
    return find_spec("flashinfer") is not None


def has_triton() -> bool:
    """Whether Triton is installed, as it is with torch's builds for CUDA."""
    return find_spec("triton") is not None


def resolve_device(name: str, *, rank: int = 0, num_ranks: int = 1) -> torch.device:
    """The device of `--device`; "auto" is CUDA where it and a package for its attention are there.

    That is the current one; of several ranks, each takes the one of its number.

    Raises:
        StartError: CUDA is asked for and there is none that can be used, or fewer devices than ranks.
    """
    has_cuda = torch.cuda.is_available()
    if name == "auto" and has_cuda and not (has_flashinfer() or has_triton()):
        log.warning(
            "computing on the CPU, though there is a CUDA device: flashinfer-python is not installed, nor triton"
        )
        has_cuda = False
    if name == "cpu" or (name == "auto" and not has_cuda):
        return torch.device("cpu")
    if not has_cuda:
        raise StartError(
            f"--device {name} needs a CUDA device that torch {torch.__version__} sees ({_why_none()}); set it to cpu"
        )
    if num_ranks == 1:
        return _tried(torch.device("cuda", torch.cuda.current_device()))
    if torch.cuda.device_count() < num_ranks:
        raise StartError(
            f"--tensor-parallel {num_ranks} needs {num_ranks} CUDA devices and torch sees {torch.cuda.device_count()}; "
            f"set it to at most {torch.cuda.device_count()}, or --device cpu"
        )
    torch.cuda.set_device(rank)
    return _tried(torch.device("cuda", rank))


def _why_none() -> str:
    """What torch says when it is asked for a CUDA device."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:  # the first where it was built without
        return _first_line(error)
    return "it lists none"


def _tried(device: torch.device) -> torch.device:
    """The device, if it can compute: another process may hold it for itself, or torch have nothing compiled for it."""
    try:
        torch.ones(1, device=device).add_(1).item()
    except RuntimeError as error:
        raise StartError(
            f"{device} can't compute with torch {torch.__version__} ({_first_line(error)}); choose another one by "
            "CUDA_VISIBLE_DEVICES, install a torch that is built for it, or set --device cpu"
        ) from error
    return device


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def device_name(device: torch.device) -> str:
    """The name of the GPU, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def free_bytes(device: torch.device) -> int:
    """Memory of the device that can still be taken."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return free_memory_bytes()


def free_share(device: torch.device, ranks: Ranks) -> int:
    """Memory that each rank can still take; all have looked before any of them goes on."""
    free = ranks.least(free_bytes(device))
    return free // ranks.num_ranks if device.type == "cpu" else free


def num_multiprocessors(device: torch.device) -> int:
    """How many groups of cores a GPU has; 0 on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    return 0


class Fence(Protocol):
    """A point in what the device has been told to do."""

    def set(self) -> None:
        """Put it behind all that has been queued so far."""

    def has_passed(self) -> bool:
        """Whether `wait` returns at once."""

    def wait(self) -> None:
        """Return when the device has come to where it was set last; at once if it never was."""


class CudaFence:
    """A fence of the current stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def set(self) -> None:
        """Record the event."""
        self._event.record()

    def has_passed(self) -> bool:
        """Ask the event."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Block this thread, not the device."""
        self._event.synchronize()


class CpuFence:
    """On the CPU all has run when the call returns."""

    def set(self) -> None:
        """Nothing is ever queued."""

    def has_passed(self) -> bool:
        """Nothing is ever behind."""
        return True

    def wait(self) -> None:
        """Nothing is waited for."""


def make_fence(device: torch.device) -> Fence:
    """The device's kind of fence."""
    return CudaFence() if device.type == "cuda" else CpuFence()
