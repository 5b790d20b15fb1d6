"""Everything that a GPU has to tell, in one command that installs nothing: the GPU's tests, then a short ladder.

    python -m bench.gpu MODEL --out docs

Runs `pytest -m gpu`, then each variant of the runner in a process of its own (decode steps in batches behind contexts,
prefills; graphs on and off, steps ahead or one by one, FlashInfer, Triton, deterministic; attention alone), torch's own
attention over keys and values in one piece, then servers over HTTP (TTFT cold and warm, decoding): axil, and vLLM and
SGLang where they are installed. Each figure stands beside what the memory's bandwidth or the products would allow.
Writes `gpu-YYYY-MM-DD.md` into --out. What fails is a line of the report, not the end of it. Without a CUDA device it
says so and ends with status 2.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import torch

from bench import gpu_servers, results
from bench.command import CannotMeasure, count, directory, exit_status, parser_of
from bench.gpu_limits import CudaDevice, Device, Sheet, ceilings, sheet_of
from bench.gpu_steps import Figure, Job
from model_runner.ladder import Ceilings

VARIANTS: dict[str, tuple[dict[str, object], bool]] = {
    "FlashInfer, graphs, one step ahead": ({"attention": "flashinfer"}, True),
    "FlashInfer, graphs, step by step": ({"attention": "flashinfer"}, False),
    "FlashInfer, no graphs, one step ahead": ({"attention": "flashinfer", "cuda_graph_sizes": "none"}, True),
    "Triton, graphs, one step ahead": ({"attention": "triton"}, True),
    "deterministic": ({"deterministic": True}, True),
}
"""The runner's settings of each, and whether steps are launched ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of the report; `failure` says why it has no figures."""

    title: str
    figures: tuple[Figure, ...] = ()
    failure: str | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; the status is 1 when a test or a part of the ladder failed."""
    parser = parser_of("bench.gpu", __doc__)
    parser.add_argument("model", nargs="?", help="directory of safetensors or .gguf file (default: the embedded model)")
    parser.add_argument("--out", type=directory, default=Path("docs"), help="directory of the report (default: docs)")
    parser.add_argument("--contexts", nargs="+", type=count, default=[1024, 8192], metavar="TOKENS")
    parser.add_argument("--batches", nargs="+", type=count, default=[1, 8, 64, 256], metavar="ROWS")
    parser.add_argument("--steps", type=count, default=32, help="decode steps of each measurement (default: 32)")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise CannotMeasure(f"torch {torch.__version__} sees no CUDA device; run this on a machine with one")
    device = CudaDevice()
    limits = ceilings(device)
    sections: list[Section] = []

    def add(section: Section) -> None:
        """Print it, and write what there is: the next one may take the machine down."""
        sections.append(section)
        print(section_text(section), flush=True)
        path = write_report(args.out, device, limits, sections, command=results.command_line("bench.gpu"))
        print(f"written to {path}", flush=True)

    add(tested())
    for title, (flags, is_ahead) in VARIANTS.items():
        job = Job(
            model=args.model,
            flags={"device": "cuda", "mem_fraction": 0.8, **flags},
            contexts=args.contexts,
            batches=args.batches,
            num_steps=args.steps,
            read_gb_s=limits.read_gb_s,
            multiply_gflop_s=limits.multiply_gflop_s,
            is_ahead=is_ahead,
            has_sdpa=title == next(iter(VARIANTS)),
        )
        add(stepped(title, job))
    for name in gpu_servers.names():
        add(served(name, args.model, args.contexts, args.batches))
    return 1 if any(section.failure for section in sections) else 0


def tested() -> Section:
    """The GPU's tests; a failure has pytest's last lines."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "tests/model_runner"]
    made = subprocess.run(command, cwd=results.ROOT, capture_output=True, text=True, check=False)
    lines = made.stdout.strip().splitlines()
    if made.returncode:
        return Section(title="tests", failure="\n".join(lines[-15:]) or made.stderr[-1000:])
    return Section(title=f"tests: {lines[-1] if lines else 'none ran'}")


def stepped(title: str, job: Job, module: str = "bench.gpu_steps") -> Section:
    """A variant's figures, out of a process of its own, so that none leaves memory behind for the next."""
    command = [sys.executable, "-m", module, msgspec.json.encode(job).decode()]
    made = subprocess.run(command, cwd=results.ROOT, capture_output=True, text=True, check=False)
    if made.returncode:
        return Section(title=title, failure=made.stderr.strip()[-1000:])
    figures = msgspec.json.decode(made.stdout.splitlines()[-1], type=list[Figure])
    return Section(title=title, figures=tuple(figures))


def served(
    name: str,
    model: str | None,
    contexts: Sequence[int],
    batches: Sequence[int],
    measured: Callable[..., list[Figure]] = gpu_servers.measured,
) -> Section:
    """A server's figures over HTTP."""
    title = f"over HTTP: {name}"
    try:
        with gpu_servers.serving(name, model, ["--device", "cuda", "--mem-fraction", "0.8"]) as server:
            return Section(title=title, figures=tuple(measured(server.url, contexts=contexts, batches=batches)))
    except CannotMeasure as error:
        return Section(title=title, failure=str(error))


def section_text(section: Section) -> str:
    """A section as Markdown: a table of figures with their limits, and the share of the limit that was reached."""
    lines = [f"## {section.title}", ""]
    if section.failure is not None:
        return "\n".join([*lines, "**failed**", "", "```text", section.failure, "```", ""])
    if section.figures:
        lines += ["| what | figure | limit | share |", "| --- | ---: | ---: | ---: |"]
        lines += [_row(figure) for figure in section.figures]
    return "\n".join([*lines, ""])


def write_report(
    out: Path,
    device: Device,
    limits: Ceilings,
    sections: Sequence[Section],
    *,
    command: str,
    now: datetime | None = None,
) -> Path:
    """Write the dated report; one of the same day is overwritten."""
    day = (now or datetime.now(UTC)).date().isoformat()
    path = out / f"gpu-{day}.md"
    head = [
        f"# On a {device.name}, {day}",
        "",
        f"`{command}`, commit {results.commit()}, {_versions()}; host: {results.machine()}.",
        f"Measured limits: copying {limits.read_gb_s:.0f} GB/s, bfloat16 products "
        f"{limits.multiply_gflop_s / 1000:.0f} TFLOP/s{_sheet_text(sheet_of(device.name))}.",
        "A decode step's limit is the time to read weights and KV once, or to multiply, whichever is longer; that of a "
        "prefill is the products of its weights.",
        "",
    ]
    path.write_text("\n".join([*head, *map(section_text, sections)]))
    return path


def _versions() -> str:
    """What computes, where it is installed."""
    named = [f"torch {torch.__version__}", f"CUDA {torch.version.cuda}"]
    for package in ("flashinfer-python", "triton"):
        try:
            named.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            named.append(f"no {package}")
    return ", ".join(named)


def _row(figure: Figure) -> str:
    value = f"{figure.value:.3g} {figure.unit}" if figure.unit == "ms" else f"{figure.value:.0f} {figure.unit}"
    if figure.limit is None:
        return f"| {figure.name} | {value} | | |"
    is_time = figure.unit == "ms"
    limit = f"{figure.limit:.3g} {figure.unit}" if is_time else f"{figure.limit:.0f} {figure.unit}"
    share = figure.limit / figure.value if is_time else figure.value / figure.limit
    return f"| {figure.name} | {value} | {limit} | {share:.0%} |"


def _sheet_text(sheet: Sheet | None) -> str:
    if sheet is None:
        return ""
    return f" (data sheet: {sheet.read_gb_s:.0f} GB/s, {sheet.multiply_tflop_s:.0f} TFLOP/s)"


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
