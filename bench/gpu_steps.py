"""Steps of one variant of the runner, in a process of its own, without a server: `bench.gpu` starts it.

    python -m bench.gpu_steps '{"model": null, "flags": {"device": "cuda"}, ...}'

The job is JSON, and so is the last line that is printed: a list of figures.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gpu_limits import timed_ms
from model_runner.attention.backend import AttentionSpec
from model_runner.config import RunnerConfig, RunnerLaunch
from model_runner.ladder import Ceilings, climb
from model_runner.load import Loaded, load
from model_runner.models.decoder import Decoder
from runtime.model_files import resolve_model


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured: `flags` are the runner's settings, `is_ahead` launches steps before tokens are waited for.

    `has_sdpa` also times torch's attention over keys and values that lie in one piece.
    """

    flags: dict[str, Any]
    contexts: list[int]
    batches: list[int]
    num_steps: int
    read_gb_s: float
    multiply_gflop_s: float
    model: str | None = None
    is_ahead: bool = False
    has_sdpa: bool = False


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure beside its limit, in the same unit: ms for steps, tokens a second for prefills."""

    name: str
    value: float
    unit: str
    limit: float | None = None


def main() -> None:
    """Measure and print."""
    print(msgspec.json.encode(run(msgspec.json.decode(sys.argv[1], type=Job))).decode())


def run(job: Job) -> list[Figure]:
    """The figures of a job; batches that the pool can't hold are left out."""
    with tempfile.TemporaryDirectory(prefix="axil-bench-") as run_dir:
        files = resolve_model(job.model)
        loaded = load(
            RunnerLaunch(
                run_dir=run_dir,
                weights=str(files.weights),
                model_config=str(files.model_config),
                tokenizer=str(Path(files.tokenizer_dir) / "tokenizer.json"),
                config=RunnerConfig(**job.flags),
            ),
            lambda done, total: None,
        )
    limits = Ceilings(read_gb_s=job.read_gb_s, multiply_gflop_s=job.multiply_gflop_s)
    figures = []
    for context in job.contexts:
        batches = [batch for batch in job.batches if _fits(loaded, context, batch, job.num_steps)]
        rungs = climb(
            loaded, limits, contexts=[context], batches=batches, num_steps=job.num_steps, is_ahead=job.is_ahead
        )
        for rung, batch in zip(rungs, [None, *batches], strict=True):
            if batch is None:
                figures.append(Figure(name=rung.name, value=rung.tok_s, unit="tok/s", limit=rung.limit_tok_s))
            else:
                step_ms, limit_ms = 1000 * batch / rung.tok_s, 1000 * batch / rung.limit_tok_s
                figures.append(Figure(name=rung.name, value=step_ms, unit="ms", limit=limit_ms))
                if job.has_sdpa:
                    figures.append(_sdpa(loaded, context, batch, limits))
    return figures


def _fits(loaded: Loaded, context: int, batch: int, num_steps: int) -> bool:
    pages = -(-(context + num_steps) // loaded.ready.page_tokens)
    return (batch + 1) * pages <= loaded.ready.num_pages


def _sdpa(loaded: Loaded, context: int, batch: int, limits: Ceilings) -> Figure:
    """Attention of all layers of a decode step by torch's, over keys and values in one piece: no pages to follow."""
    assert isinstance(loaded.model, Decoder), "the ladder has refused others"
    config, device = loaded.model.config, loaded.model.layers[0].input_norm.weight.device
    q, k, v = sdpa_inputs(
        AttentionSpec(
            num_layers=1,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.attention_scale,
            dtype=loaded.model.dtype,
            page_tokens=1,
        ),
        context,
        batch,
        device,
    )
    one_ms = timed_ms(
        lambda: F.scaled_dot_product_attention(q, k, v, scale=config.attention_scale, enable_gqa=True), device
    )
    read_ms = 1000 * (k.nbytes + v.nbytes) / (limits.read_gb_s * 1e9)
    return Figure(
        name=f"attention by SDPA {context} x {batch}",
        value=config.num_layers * one_ms,
        unit="ms",
        limit=config.num_layers * read_ms,
    )


def sdpa_inputs(spec: AttentionSpec, context: int, batch: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Random q of one token, and k and v of a context, of one layer."""
    q = torch.randn(batch, spec.num_heads, 1, spec.head_dim, dtype=spec.dtype, device=device)
    k, v = torch.randn(2, batch, spec.num_kv_heads, context, spec.head_dim, dtype=spec.dtype, device=device)
    return q, k, v


if __name__ == "__main__":
    main()
