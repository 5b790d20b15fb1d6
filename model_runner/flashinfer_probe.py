"""Whether FlashInfer's kernels can be had on this machine, where they are compiled when they are first used."""

from __future__ import annotations

import functools
import logging
import os
import shutil
import sys
from pathlib import Path

import torch

log = logging.getLogger(__name__)

REMEDY = (
    "FlashInfer compiles its kernels by nvcc (CUDA_HOME) and ninja, with the headers of cuBLAS and cuRAND, into "
    ".cache/flashinfer of the home directory or of FLASHINFER_WORKSPACE_BASE; docs/gpu.md says how to compile them on "
    "another machine"
)


@functools.cache
def obstacle(device: torch.device) -> str | None:
    """Why its smallest kernel can't be loaded or does not run here; None where it did."""
    _find_ninja()
    try:
        from flashinfer import silu_and_mul  # is there with the extra only

        log.info("FlashInfer's kernels are loaded; those that are not there yet are compiled, which takes minutes")
        halves = torch.zeros(1, 16, dtype=torch.float16, device=device)
        silu_and_mul(halves, out=halves.new_empty(1, 8), enable_pdl=False).cpu()
    except (ImportError, OSError, RuntimeError) as error:
        return said(error)
    return None


def said(error: Exception) -> str:
    """An error of FlashInfer's in one line; what compilers have to say ends with what it comes to."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line or "fatal" in line] or lines[-1:]
    return f"{type(error).__name__}: {(telling or ['no reason given'])[0][:300]}"


def _find_ninja() -> None:
    """FlashInfer looks for ninja on the path, where that of an environment that is not activated isn't."""
    beside = Path(sys.executable).parent
    if shutil.which("ninja") is None and (beside / "ninja").exists():
        os.environ["PATH"] = os.pathsep.join(filter(None, (os.environ.get("PATH"), str(beside))))
