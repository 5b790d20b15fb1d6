"""Builds a runner from a launch: model, KV pool, warm-up. Knows no sockets."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wire.messages.encoding import ids_to_bytes
from wire.messages.from_runner import Ready
from wire.messages.to_runner import Admission, Chunk, StepPlan
from wire.sampling import SamplingParams

from . import flashinfer_probe
from .attention.backend import AttentionBackend, GraphBackend
from .attention.choice import make_backend, uses_flashinfer
from .batch import build_batch
from .config import RunnerLaunch
from .device import device_name, free_share, resolve_device
from .device_sampler import DeviceSampler, flashinfer_filters, sorting_filters
from .errors import StartError
from .graphs import CudaCapture, DecodeGraphs
from .host import num_threads, resident_bytes
from .implementation import build, is_own
from .kernel_choice import load_library
from .kernels.sampler import SamplerKernels
from .kv_pool import KVPool, check_context_fits, choose_num_pages, token_bytes
from .models.model import Model
from .ranks import Ranks, join
from .rows import RowTable
from .runner import Runner
from .weights import OnProgress, weight_files

log = logging.getLogger(__name__)

_GIB, _MIB = 1 << 30, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A runner that may take plans, what the scheduler is told of it, and what the operator is told."""

    runner: Runner[Any]
    model: Model
    ranks: Ranks
    kv_bytes_per_token: int
    ready: Ready
    facts: dict[str, str | int | float]


def load(launch: RunnerLaunch, on_progress: OnProgress) -> Loaded:
    """Load the model, or this rank's share of it, and reserve the KV pool.

    Raises:
        StartError: too little memory, or flags that don't fit the model; names the flag.
        RankLost: another rank has gone.
        ValueError: the model or its weights can't be read or are not supported.
    """
    started = time.monotonic()
    config = launch.config
    files = weight_files(Path(launch.weights))
    threads = num_threads(config.threads, num_ranks=config.tensor_parallel)
    device = resolve_device(config.device, rank=launch.rank, num_ranks=config.tensor_parallel)
    library = load_library() if device.type == "cpu" and config.kernels == "auto" else None
    if library is not None:
        library.set_threads(threads)
    dtype = resolve_dtype(config.dtype, device, has_kernels=library is not None and is_own(launch))
    ranks = join(
        Path(launch.run_dir),
        device,
        rank=launch.rank,
        num_ranks=config.tensor_parallel,
        is_order_fixed=config.deterministic,
    )
    built = build(launch, dtype, device, library, ranks, on_progress)
    load_s = time.monotonic() - started

    spec = built.spec
    sizes = config.graph_sizes() if device.type == "cuda" else ()
    has_flashinfer = uses_flashinfer(config.attention, spec, device, is_deterministic=config.deterministic)
    with _explained(has_flashinfer=has_flashinfer):
        backend = make_backend(
            config.attention,
            spec,
            device,
            library,
            max_graph_rows=max(sizes, default=0),
            is_deterministic=config.deterministic,
        )
    multiple = backend.capabilities().head_dim_multiple
    bytes_per_token = token_bytes(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=-(-spec.head_dim // multiple) * multiple,
        dtype=dtype,
    )
    num_pages = choose_num_pages(
        page_tokens=config.page_tokens,
        token_bytes=bytes_per_token,
        free_bytes=free_share(device, ranks),
        max_total_tokens=config.max_total_tokens,
        max_total_bytes=config.max_total_bytes,
        mem_fraction=config.mem_fraction,
    )
    pool_tokens = num_pages * config.page_tokens
    check_context_fits(
        built.context_tokens,
        num_pages=num_pages,
        page_tokens=config.page_tokens,
        is_asked_for=config.context_length is not None,
    )
    pool = backend.make_kv_pool(num_pages)
    sampler = None
    if device.type == "cuda":
        sampler = DeviceSampler(device, flashinfer_filters() if has_flashinfer else sorting_filters())
    with _explained(has_flashinfer=has_flashinfer):
        runner = Runner(
            built.model,
            backend,
            pool,
            device=device,
            ranks=ranks,
            tokenizer=Path(launch.tokenizer),
            device_sampler=sampler,
            sampler_kernels=None if library is None else SamplerKernels(library),
            graphs=_graphs(built.model, backend, pool, sizes, context_tokens=built.context_tokens),
        )
        _warm_up(runner, page_tokens=config.page_tokens, num_pages=num_pages, vocabulary=built.model.vocabulary)
        if sampler is not None:
            _warm_up_sampler(sampler, device, vocabulary=built.model.vocabulary)
    dtype_name = str(dtype).removeprefix("torch.")
    kernels = "off" if library is None else library.isa.value
    computed_in = f"{dtype_name} {built.weights} {kernels} {built.code} {ranks.num_ranks} {config.deterministic}"
    return Loaded(
        runner=runner,
        model=built.model,
        ranks=ranks,
        kv_bytes_per_token=bytes_per_token,
        ready=Ready(
            num_pages=num_pages,
            page_tokens=config.page_tokens,
            vocabulary=built.model.vocabulary,
            context_tokens=built.context_tokens,
            model_fingerprint=fingerprint(Path(launch.model_config), files, computed_in),
            device=device_name(device),
        ),
        facts={
            "model_impl": built.code,
            "kv_pool_tokens": pool_tokens,
            "kv_pool_gib": round(pool_tokens * bytes_per_token / _GIB, 2),
            "device": str(device),
            "dtype": dtype_name,
            "weights": built.weights,
            "weights_mib": round(built.weights_bytes / _MIB),
            "resident_mib": round(resident_bytes() / _MIB),
            "kernels": kernels,
            "threads": threads,
            "load_s": round(load_s, 2),
        },
    )


def resolve_dtype(name: str, device: torch.device, *, has_kernels: bool) -> torch.dtype:
    """The serving dtype; "auto" is bfloat16 where that is fast, else float16 on CUDA, float32 on a CPU.

    It's fast where the device multiplies it. In the kernels it always is: they widen it as they read it.

    Raises:
        StartError: the device does not compute in it.
    """
    match name:
        case "float16" if device.type == "cpu":
            raise StartError("--dtype float16 is for GPUs; set it to auto, bfloat16 or float32, or --device cuda")
        case "auto" if device.type == "cuda":
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
        case "auto":
            has_bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
            return torch.bfloat16 if has_bfloat16 or has_kernels else torch.float32
        case _:
            return {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[name]


def fingerprint(model_config: Path, files: Sequence[Path], computed_in: str) -> str:
    """Identity of what computes the KV: configuration, weight files (path, size, time), dtype and code."""
    digest = hashlib.sha256(model_config.read_bytes())
    for file in files:
        stat = file.stat()
        digest.update(f"\0{file.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
    digest.update(f"\0{computed_in}".encode())
    return digest.hexdigest()[:32]


def _graphs(
    model: Model, backend: AttentionBackend[Any], pool: KVPool, sizes: Sequence[int], *, context_tokens: int
) -> DecodeGraphs[Any] | None:
    """Graphs of the given numbers of rows, where there are any and the backend's steps can be recorded."""
    if not sizes or not isinstance(backend, GraphBackend):
        return None
    started = time.monotonic()
    with torch.inference_mode():
        graphs = DecodeGraphs(
            model,
            backend,
            pool,
            sizes=sizes,
            max_row_pages=-(-context_tokens // pool.page_tokens),
            capture=CudaCapture(),
        )
    log.info("recorded cuda graphs=%d seconds=%.1f", len(set(sizes)), time.monotonic() - started)
    return graphs


@contextmanager
def _explained(*, has_flashinfer: bool) -> Iterator[None]:
    """What first steps may fail of on a GPU, told with what to do.

    Raises:
        StartError: in place of such an error.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        reason = flashinfer_probe.said(error)
        if "CUDA" in reason and "out of memory" in reason:
            raise StartError(
                "the GPU's memory does not hold what steps need beside weights and KV pool, the recorded ones most of "
                f"all ({reason}); lower --mem-fraction, or record fewer by --cuda-graph-sizes"
            ) from error
        if not has_flashinfer:
            raise
        log.exception("the first steps in FlashInfer's kernels failed")
        raise StartError(
            f"the first steps in FlashInfer's kernels failed ({reason}). {flashinfer_probe.REMEDY}; "
            "--attention triton needs none of it"
        ) from error


def _warm_up(runner: Runner[Any], *, page_tokens: int, num_pages: int, vocabulary: int) -> None:
    """Prefill and decode a few tokens on pages that nobody has been given yet."""
    table = RowTable(num_pages=num_pages, page_tokens=page_tokens)
    num_tokens = min(8, page_tokens * num_pages - 1)
    pages = range(-(-(num_tokens + 1) // page_tokens))
    table.admit(
        Admission(row=0, request_id="", sampling=SamplingParams(), num_cached_tokens=0, page_ids=ids_to_bytes(pages))
    )
    token_ids = ids_to_bytes(i % vocabulary for i in range(num_tokens))
    prefill = StepPlan(step=0, chunks=(Chunk(row=0, token_ids=token_ids, is_sampled=True),))
    runner.forward(build_batch(table, prefill, vocabulary=vocabulary))
    table.lengths[0] = num_tokens
    decode = StepPlan(step=0, decodes=ids_to_bytes([0]))
    runner.forward(build_batch(table, decode, vocabulary=vocabulary))


def _warm_up_sampler(sampler: DeviceSampler, device: torch.device, *, vocabulary: int) -> None:
    """Draw a token with every filter: their kernels may have to be compiled."""
    params = SamplingParams(temperature=1.0, top_k=2, top_p=0.5, min_p=0.1, seed=0)
    with torch.inference_mode():
        token_ids_B, _ = sampler.sample(torch.zeros(1, vocabulary, device=device), [params], np.zeros(1, np.int64))
    token_ids_B.cpu()
