"""Which code computes a model, ours or transformers', and the model built with it. Knows no KV pool."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .attention.backend import AttentionSpec
from .attention.choice import uses_flashinfer
from .config import RunnerConfig, RunnerLaunch
from .device import free_bytes, free_share
from .errors import StartError
from .host import num_threads
from .invariant import blocked
from .kernels.library import Library
from .kernels.linear import Format, LinearKernels
from .kernels.ops import KernelOps
from .kv_pool import CPU
from .layers import MAX_PACKED_BYTES, can_pack
from .linears import KernelLinears
from .model_config import ModelConfig, find_family, parse_model_config, read_json, unknown_architecture
from .models.decoder import num_parameters
from .models.model import Model
from .models.registry import make_model, shape_of
from .ops import Ops, TorchOps
from .ranks import Ranks
from .share import Share
from .weights import OnProgress, load_weights, stored_types

log = logging.getLogger(__name__)

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A model with its weights.

    `code` says whose layers they are, with the version where it matters; `weights` how linear layers hold theirs, and
    `weights_bytes` what they take.
    """

    model: Model
    spec: AttentionSpec
    context_tokens: int
    code: str
    weights: str
    weights_bytes: int


def build(
    launch: RunnerLaunch,
    dtype: torch.dtype,
    device: torch.device,
    library: Library | None,
    ranks: Ranks,
    on_progress: OnProgress,
) -> Built:
    """The model in the code that `--model-impl` asks for: ours where we know the architecture, else transformers'.

    `library` are the CPU's kernels, for our own code. Of several ranks, each builds its share.

    Raises:
        StartError: too little memory, or flags that don't fit the model; names the flag.
        ValueError: the model or its weights can't be read or are not supported.
    """
    raw, config = read_json(Path(launch.model_config)), launch.config
    is_directory, is_known = Path(launch.weights).is_dir(), find_family(raw) is not None
    match config.model_impl:
        case "transformers" if device.type != "cpu":
            raise StartError("--model-impl transformers computes on the CPU only; set --device cpu")
        case "transformers" if not is_directory:
            raise StartError(
                "--model-impl transformers needs a directory with safetensors; set it to auto for this file"
            )
        case "transformers" if config.deterministic:
            raise StartError("--deterministic needs axil's own code for the model; set --model-impl auto")
        case "transformers" if ranks.num_ranks > 1:
            raise StartError("--model-impl transformers computes in one process; set --tensor-parallel 1")
        case "transformers":
            return _build_theirs(launch, dtype, on_progress, reason="--model-impl")
        case "auto" if is_directory and not is_known:
            unknown = unknown_architecture(raw)
            if device.type != "cpu":
                raise StartError(f"{unknown}; set --device cpu for transformers' code")
            if config.deterministic:
                raise StartError(f"{unknown}; and transformers' code is not deterministic: leave --deterministic out")
            if ranks.num_ranks > 1:
                raise StartError(f"{unknown}; set --tensor-parallel 1 for transformers' code")
            try:
                return _build_theirs(launch, dtype, on_progress, reason=str(unknown))
            except ValueError as error:
                raise ValueError(f"{unknown}; {error}") from error
        case _:
            return _build_own(launch, parse_model_config(raw), dtype, device, library, ranks, on_progress)


def is_own(launch: RunnerLaunch) -> bool:
    """Whether our code computes the model, as far as its configuration tells.

    Raises:
        ValueError: the configuration can't be read.
    """
    return launch.config.model_impl != "transformers" and find_family(read_json(Path(launch.model_config))) is not None


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


def _torch_ops(config: RunnerConfig, spec: AttentionSpec, device: torch.device) -> Ops:
    if uses_flashinfer(config.attention, spec, device, is_deterministic=config.deterministic):
        from .flashinfer_ops import FlashInferOps  # takes seconds, and is there with the extra only

        return FlashInferOps()
    return TorchOps()


def _build_own(
    launch: RunnerLaunch,
    model_config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    library: Library | None,
    ranks: Ranks,
    on_progress: OnProgress,
) -> Built:
    config = launch.config
    context_tokens = _context_tokens(config, model_config.context_tokens)
    if library is not None and dtype in KernelOps.DTYPES:
        if config.deterministic:
            log.info("--deterministic changes nothing: the kernels in C++ always compute so")
        return _build_in_kernels(launch, model_config, dtype, library, ranks, on_progress, context_tokens)
    _refuse_quantize(config, "the CPU kernels, which are off or can't be built here")
    share = Share(whole=model_config, rank=ranks.rank, num_ranks=ranks.num_ranks)
    needed = num_parameters(replace(share.config(), vocabulary=len(share.vocabulary))) * dtype.itemsize
    head_bytes = len(share.vocabulary) * model_config.hidden_size * dtype.itemsize
    is_packed = device.type == "cpu"
    if is_packed and model_config.is_embedding_tied and head_bytes <= MAX_PACKED_BYTES and can_pack(dtype):
        needed += head_bytes
    _check_weights_fit(needed, free_share(device, ranks), dtype)
    spec = attention_spec(share.config(), dtype, page_tokens=config.page_tokens)
    ops = _torch_ops(config, spec, device)
    with device:
        model = make_model(model_config, dtype, ops, ranks=ranks)
    # Pieces of a tensor are too small to share among threads.
    torch.set_num_threads(1)
    load_weights(model, Path(launch.weights), on_progress)
    torch.set_num_threads(num_threads(config.threads, num_ranks=config.tensor_parallel))
    if config.deterministic:
        model.pack(blocked)
    elif is_packed:
        model.pack()
    return Built(
        model=model,
        spec=spec,
        context_tokens=context_tokens,
        code="axil",
        weights=_name(dtype),
        weights_bytes=needed,
    )


def _build_in_kernels(
    launch: RunnerLaunch,
    model_config: ModelConfig,
    dtype: torch.dtype,
    library: Library,
    ranks: Ranks,
    on_progress: OnProgress,
    context_tokens: int,
) -> Built:
    config, path = launch.config, Path(launch.weights)
    stored = stored_types(path, model_config, shape_of(model_config))
    linears = KernelLinears(LinearKernels(library), dtype, quantize=config.quantize, stored=stored)
    # Nothing is taken yet: memory counts when it is touched.
    # All layers in one call would have no place for the sums over ranks: then it's op by op, with the same bits.
    model = make_model(model_config, dtype, KernelOps(library, is_whole=ranks.num_ranks == 1), linears, ranks)
    weights_bytes = linears.num_bytes + (0 if model.embedding is None else model.embedding.nbytes)
    _check_weights_fit(weights_bytes, free_share(CPU, ranks), dtype)
    # It stays at one: what is left to torch is small, and OpenMP's threads, which spin, would take the kernels' cores.
    torch.set_num_threads(1)
    load_weights(model, path, on_progress)
    spec = attention_spec(model.config, dtype, page_tokens=config.page_tokens)
    if config.quantize == "int8" and any(kind.format is Format.INT4 for kind in linears.kinds):
        log.info("--quantize int8 leaves what the file holds in 4 bits as it is, with tokens rounded to 8 bits")
    weights = "+".join(sorted({kind.name for kind in linears.kinds}))
    return Built(
        model=model,
        spec=spec,
        context_tokens=context_tokens,
        code="axil",
        weights=weights,
        weights_bytes=weights_bytes,
    )


def _refuse_quantize(config: RunnerConfig, needed: str) -> None:
    if config.quantize != "none":
        raise StartError(f"--quantize {config.quantize} needs {needed}; set it to none")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _build_theirs(launch: RunnerLaunch, dtype: torch.dtype, on_progress: OnProgress, *, reason: str) -> Built:
    try:
        from .transformers_impl import build, source  # takes seconds, and is not needed for families of ours
    except ImportError as error:
        raise StartError(
            f"this model needs the package transformers ({reason}): pip install 'transformers>=5,<6' ({error})"
        ) from error
    config = launch.config
    _refuse_quantize(config, "axil's own code for the model")
    read = source.read_source(Path(launch.model_config))
    context_tokens = _context_tokens(config, read.context_tokens)
    num_bytes = source.num_bytes(read, dtype)
    _check_weights_fit(num_bytes, free_bytes(CPU), dtype)
    log.info("model_impl=transformers version=%s class=%s reason=%r", source.VERSION, read.name, reason)
    torch.set_num_threads(num_threads(config.threads, num_ranks=config.tensor_parallel))
    on_progress(0, num_bytes)
    model, spec = build.build_model(read, Path(launch.weights), dtype, page_tokens=config.page_tokens)
    on_progress(num_bytes, num_bytes)
    return Built(
        model=model,
        spec=spec,
        context_tokens=context_tokens,
        code=f"transformers-{source.VERSION}",
        weights=_name(dtype),
        weights_bytes=num_bytes,
    )


def _context_tokens(config: RunnerConfig, made_for: int) -> int:
    if config.context_length is None:
        return made_for
    if config.context_length > made_for:
        raise StartError(
            f"--context-length {config.context_length} is more than the model was made for; "
            f"set it to at most {made_for}"
        )
    return config.context_length


def _check_weights_fit(needed: int, free: int, dtype: torch.dtype) -> None:
    if needed <= free:
        return
    cure = "--dtype bfloat16 or a smaller model" if dtype == torch.float32 else "a smaller model"
    raise StartError(
        f"the weights need {needed / _GIB:.2f} GiB and {free / _GIB:.2f} GiB of memory are free; use {cure}"
    )
