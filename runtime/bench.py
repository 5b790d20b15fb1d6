"""`axil bench`: what this machine allows and how near to it the model runs, in this process, without a server."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from model_runner.config import RunnerConfig, RunnerLaunch
from wire.flags import flag

from .model_files import resolve_model


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFlags:
    """What is measured."""

    contexts: str = flag("256,1024", "Tokens behind which rows decode, separated by commas.")
    batches: str = flag("1,8,32", "Rows that decode together, separated by commas.")
    steps: int = flag(12, "Decode steps of each measurement.")

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: names the flag and the given value.
        """
        for name in ("contexts", "batches"):
            numbers(name, getattr(self, name))
        if self.steps < 2:
            raise ValueError(f"--steps must be at least 2, got {self.steps}")


def numbers(name: str, text: str) -> list[int]:
    """The numbers of a flag.

    Raises:
        ValueError: they are none, or not above 0.
    """
    if not all(word.isdecimal() and int(word) > 0 for word in text.split(",")):
        raise ValueError(f"--{name} takes numbers above 0 separated by commas, got {text}")
    return [int(word) for word in text.split(",")]


def bench(model: str | None, flags: BenchFlags, config: RunnerConfig) -> None:
    """Measure and print, one line at a time.

    Raises:
        StartError: the model does not fit, or there are no kernels to measure.
        ValueError: the model can't be read.
        BadModel: it can't be found.
    """
    from model_runner.errors import StartError  # these load torch, which takes a second
    from model_runner.kernel_choice import load_library
    from model_runner.ladder import climb, measure_ceilings
    from model_runner.load import load

    if config.tensor_parallel > 1:
        raise StartError("axil bench measures one process; leave --tensor-parallel out")
    contexts, batches = numbers("contexts", flags.contexts), numbers("batches", flags.batches)
    if config.max_total_tokens is None and config.max_total_bytes is None:
        pages_each = -(-(max(contexts) + flags.steps) // config.page_tokens)
        config = replace(config, max_total_tokens=(max(batches) + 1) * pages_each * config.page_tokens)
    files = resolve_model(model)
    with tempfile.TemporaryDirectory(prefix="axil-bench-") as run_dir:
        launch = RunnerLaunch(
            run_dir=run_dir,
            weights=str(files.weights),
            model_config=str(files.model_config),
            tokenizer=str(Path(files.tokenizer_dir) / "tokenizer.json"),
            config=config,
        )
        loaded = load(launch, lambda done, total: None)
    library = load_library() if config.kernels == "auto" else None
    if library is None:
        raise StartError("axil bench measures the kernels; set --kernels auto on a machine that can build them")
    print("  ".join(f"{name}={value}" for name, value in loaded.facts.items()))
    ceilings = measure_ceilings(library)
    products = {"float32": ceilings.multiply_gflop_s} | {
        each.name.lower(): rate for each, rate in ceilings.kernels_gflop_s.items()
    }
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in products.items())
    print(f"memory read {ceilings.read_gb_s:.1f} GB/s; products of {rates} G operations/s")
    print(f"{'':<20}{'tokens/s':>10}{'limit':>10}{'share':>8}")
    for rung in climb(loaded, ceilings, contexts=contexts, batches=batches, num_steps=flags.steps):
        share = rung.tok_s / rung.limit_tok_s
        print(f"{rung.name:<20}{rung.tok_s:>10.0f}{rung.limit_tok_s:>10.0f}{share:>8.0%}", flush=True)
