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

from bench.gpu_attention import attention_ms, limit_ms, sdpa_ms
from model_runner.attention.backend import AttentionBackend, AttentionSpec
from model_runner.attention.choice import make_backend
from model_runner.config import RunnerConfig, RunnerLaunch
from model_runner.implementation import attention_spec
from model_runner.kernel_choice import load_library
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
                figures += _attention(job, loaded, context, batch, limits)
    return figures


def _fits(loaded: Loaded, context: int, batch: int, num_steps: int) -> bool:
    pages = -(-(context + num_steps) // loaded.ready.page_tokens)
    return (batch + 1) * pages <= loaded.ready.num_pages


def _attention(job: Job, loaded: Loaded, context: int, batch: int, limits: Ceilings) -> list[Figure]:
    """Attention of all layers of a decode step alone: by the variant's backend, and by torch's."""
    assert isinstance(loaded.model, Decoder), "the ladder has refused others"
    config = RunnerConfig(**job.flags)
    spec = attention_spec(loaded.model.config, loaded.model.dtype, page_tokens=loaded.ready.page_tokens)
    device = loaded.model.layers[0].input_norm.weight.device

    def new_backend(one_layer: AttentionSpec) -> AttentionBackend[Any]:
        library = load_library() if device.type == "cpu" and config.kernels == "auto" else None
        return make_backend(config.attention, one_layer, device, library, is_deterministic=config.deterministic)

    own_ms = attention_ms(new_backend, spec, context=context, num_rows=batch, device=device)
    least_ms = limit_ms(spec, limits, context=context, num_rows=batch)
    figures = [Figure(name=f"attention alone {context} x {batch}", value=own_ms, unit="ms", limit=least_ms)]
    if job.has_sdpa:
        torch_ms = sdpa_ms(spec, context=context, num_rows=batch, device=device)
        figures.append(Figure(name=f"attention by SDPA {context} x {batch}", value=torch_ms, unit="ms", limit=least_ms))
    return figures


if __name__ == "__main__":
    main()
