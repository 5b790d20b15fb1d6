"""Builds a runner from a launch: configuration, weights, KV pool, warm-up. Knows no sockets."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from wire.messages import Admission, Chunk, Ready, StepPlan, ids_to_bytes
from wire.sampling import SamplingParams

from .attention.backend import AttentionSpec
from .attention.torch_backend import TorchAttention, TorchStep
from .batch import build_batch
from .config import RunnerConfig, RunnerLaunch
from .errors import StartError
from .host import free_memory_bytes, usable_cores
from .kv_pool import choose_num_pages, token_bytes
from .layers import MAX_PACKED_BYTES, can_pack
from .model_config import ModelConfig, read_model_config
from .models.decoder import num_parameters
from .models.registry import make_model
from .rows import RowTable
from .runner import Runner
from .weights import OnProgress, load_weights, weight_files

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A runner that may take plans, what the scheduler is told of it, and what the operator is told."""

    runner: Runner[TorchStep]
    ready: Ready
    facts: dict[str, str | int | float]


def load(launch: RunnerLaunch, on_progress: OnProgress) -> Loaded:
    """Load the model and reserve the KV pool.

    Raises:
        StartError: too little memory, or flags that don't fit the model; names the flag.
        ValueError: the model or its weights can't be read or are not supported.
    """
    started = time.monotonic()
    config = launch.config
    path = Path(launch.weights)
    files = weight_files(path)
    model_config = read_model_config(Path(launch.model_config))
    context_tokens = _context_tokens(config, model_config)
    dtype = resolve_dtype(config.dtype)
    _check_weights_fit(model_config, dtype)

    model = make_model(model_config, dtype)
    # Pieces of a tensor are too small to share among threads.
    torch.set_num_threads(1)
    load_weights(model, path, on_progress)
    torch.set_num_threads(config.threads or usable_cores())
    model.pack()
    load_s = time.monotonic() - started

    spec = attention_spec(model_config, dtype, page_tokens=config.page_tokens)
    bytes_per_token = token_bytes(
        num_layers=spec.num_layers, num_kv_heads=spec.num_kv_heads, head_dim=spec.head_dim, dtype=dtype
    )
    num_pages = choose_num_pages(
        page_tokens=config.page_tokens,
        token_bytes=bytes_per_token,
        free_bytes=free_memory_bytes(),
        max_total_tokens=config.max_total_tokens,
        mem_fraction=config.mem_fraction,
    )
    backend = make_backend(config.attention, spec)
    pool = backend.make_kv_pool(num_pages)
    runner = Runner(model, backend, pool, tokenizer=Path(launch.tokenizer))
    _warm_up(runner, page_tokens=config.page_tokens, num_pages=num_pages, vocabulary=model_config.vocabulary)
    dtype_name = str(dtype).removeprefix("torch.")
    return Loaded(
        runner=runner,
        ready=Ready(
            num_pages=num_pages,
            page_tokens=config.page_tokens,
            vocabulary=model_config.vocabulary,
            context_tokens=context_tokens,
            model_fingerprint=fingerprint(Path(launch.model_config), files, dtype_name),
        ),
        facts={
            "kv_pool_tokens": num_pages * config.page_tokens,
            "kv_pool_gib": round(num_pages * config.page_tokens * bytes_per_token / _GIB, 2),
            "dtype": dtype_name,
            "threads": torch.get_num_threads(),
            "load_s": round(load_s, 2),
        },
    )


def resolve_dtype(name: str) -> torch.dtype:
    """The serving dtype; "auto" is bfloat16 where the CPU multiplies it, else float32."""
    if name == "auto":
        has_bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return torch.bfloat16 if has_bfloat16 else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def attention_spec(config: ModelConfig, dtype: torch.dtype, *, page_tokens: int) -> AttentionSpec:
    """The shape of a model's attention."""
    return AttentionSpec(
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.attention_scale,
        dtype=dtype,
        page_tokens=page_tokens,
        windows=config.windows,
    )


def make_backend(name: str, spec: AttentionSpec) -> TorchAttention:
    """The backend of `--attention`; "auto" is the fastest that this machine has, so far the only one.

    Raises:
        StartError: it can't serve this model.
    """
    if name not in ("auto", "torch"):
        raise StartError(f"--attention {name} is not known; set it to auto or torch")
    backend = TorchAttention(spec)
    if spec.dtype not in backend.capabilities().dtypes:
        raise StartError(f"--attention {name} can't compute in {spec.dtype}; set --dtype float32")
    return backend


def fingerprint(model_config: Path, files: Sequence[Path], dtype_name: str) -> str:
    """Identity of what computes the KV: configuration, weight files (path, size, time) and dtype."""
    digest = hashlib.sha256(model_config.read_bytes())
    for file in files:
        stat = file.stat()
        digest.update(f"\0{file.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
    digest.update(f"\0{dtype_name}".encode())
    return digest.hexdigest()[:32]


def _context_tokens(config: RunnerConfig, model_config: ModelConfig) -> int:
    if config.context_length is None:
        return model_config.context_tokens
    if config.context_length > model_config.context_tokens:
        raise StartError(
            f"--context-length {config.context_length} is more than the model was made for; "
            f"set it to at most {model_config.context_tokens}"
        )
    return config.context_length


def _check_weights_fit(config: ModelConfig, dtype: torch.dtype) -> None:
    needed, free = num_parameters(config) * dtype.itemsize, free_memory_bytes()
    head_bytes = config.vocabulary * config.hidden_size * dtype.itemsize
    if config.is_embedding_tied and head_bytes <= MAX_PACKED_BYTES and can_pack(dtype):
        needed += head_bytes
    if needed <= free:
        return
    cure = "--dtype bfloat16 or a smaller model" if dtype == torch.float32 else "a smaller model"
    raise StartError(
        f"the weights need {needed / _GIB:.2f} GiB and {free / _GIB:.2f} GiB of memory are free; use {cure}"
    )


def _warm_up(runner: Runner[TorchStep], *, page_tokens: int, num_pages: int, vocabulary: int) -> None:
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
