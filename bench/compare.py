"""axil and its peers on the same loads, on the same machine, in one run.

    PEERS=/opt/peers python -m bench.compare --peers /opt/peers --names axil vllm openvino \\
        --tokenizer model/tokenizer.json --repeats 3 --run 'w9 --groups 1 --per-group 64' --run 'w4 --groups 2'

Peers are started from a folder that the project does not bring. It has an executable `peer.sh`:
    PORT=8100 peer.sh NAME    starts NAME in the foreground on 127.0.0.1:$PORT; status 2: it knows no such name
A peer answers POST /v1/completions with token ids as prompt, streamed, with usage at the end. PEERS says where its
programs and models lie (default: the folder). All servers should serve the same weights, whose tokenizer is given.

Each server runs alone, unless --together keeps all running and lets them take turns. All are stopped at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench import comparison, plots, results, summary
from bench.client import GENERATE
from bench.command import CannotMeasure, directory, exit_status, parser_of, positive
from bench.load_flags import Load, add_load_flags, load_of
from bench.peers import peer, script_of
from bench.processes import family_mb
from bench.serve import add_repeat_flags, measure, report_failures
from bench.server import NotStarted, Server, add_launch_flags, launched

AXIL = "axil"
NAMES = (AXIL, "vllm", "llamacpp-bf16", "openvino", "sglang", "hf-cb")
RUNS = (
    "w15 --groups 4 --question-tokens 32 --output-tokens 256 --closed 1 --scale 1",
    "w15 --groups 8 --question-tokens 32 --output-tokens 256 --closed 8 --scale 1",
    "w15 --groups 16 --question-tokens 256 --output-tokens 64 --closed 8 --scale 1",
    "w9 --groups 1 --per-group 64 --prefix-tokens 1024 --question-tokens 32 --output-tokens 16 --closed 16 --scale 1",
    "w6 --groups 8 --turns 6 --answers long",
    "w2 --groups 4 --turns 12 --tool-tokens 320 --output-tokens 24 --tool-wait 0.5 --scale 1",
    "w4 --groups 2",
)
"""What is run unless `--run` says otherwise: small enough for two cores and a model of 0.1 to 0.5 billion weights."""

FIRST_SEED = 42
"""Each load has a seed of its own, so that none finds the prompts of the one before it in a server's cache."""

SHORT_FIGURES = ("output_tokens_per_s", "ttft_p50_ms", "ttft_p95_ms", "cached_share_percent")


@dataclass(slots=True)
class Findings:
    """What was measured so far: for each load the rows of each server, and which servers were not there.

    `ready_s` is from a server's start to its first answer, `resident_mb` its memory behind all loads.
    """

    rows: dict[str, dict[str, comparison.Rows]]
    ready_s: dict[str, float] = field(default_factory=dict)
    resident_mb: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    has_failures: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table for each load and a short one of all; 1 when a request failed or a server was missing."""
    args = parse(argv)
    if args.plots is not None:
        plots.require_matplotlib()
    loads = {run: load_from(run, args, seed=seed) for seed, run in enumerate(args.run or RUNS, start=FIRST_SEED)}
    findings = Findings({title: {} for title in loads})
    if args.together:
        _run_together(args, loads, findings)
    else:
        for name in args.names:
            _run_alone(args, name, loads, findings)
    _report(args, loads, findings)
    return 1 if findings.missing or findings.has_failures else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = parser_of("bench.compare", __doc__)
    parser.add_argument("--peers", type=Path, required=True, metavar="FOLDER", help="the folder with peer.sh")
    parser.add_argument(
        "--names",
        nargs="+",
        default=list(NAMES),
        metavar="NAME",
        help=f"servers, the one that ratios refer to first (default: {' '.join(NAMES)})",
    )
    parser.add_argument(
        "--also-axil",
        action="append",
        type=_named_flags,
        default=[],
        metavar="NAME='FLAGS'",
        help="axil once more under another name (to be in --names), with these flags of axil serve; may be repeated",
    )
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="FILE", help="the weights' tokenizer.json")
    parser.add_argument(
        "--run",
        action="append",
        metavar="'SHAPE FLAGS'",
        help="a load, with the flags of bench.serve, such as 'w9 --groups 1 --closed 16'; may be repeated",
    )
    parser.add_argument("--together", action="store_true", help="start all servers first, and let them take turns")
    parser.add_argument(
        "--ready-within", type=positive, default=300.0, metavar="S", help="seconds to start (default: 300)"
    )
    add_repeat_flags(parser)
    add_launch_flags(parser)
    parser.add_argument("--plots", type=directory, metavar="DIR", help="also draw the figures into DIR")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    if not {name for name, _ in args.also_axil} <= {*args.names} - {AXIL}:
        parser.error(f"--also-axil must have names other than {AXIL} that are among --names")
    if len(set(args.names)) < len(args.names):
        parser.error("--names has one name twice")
    return args


def load_from(run: str, args: argparse.Namespace, *, seed: int) -> Load:
    """The load that one `--run` asks for, with the words of `seed` unless it names another.

    Raises:
        CannotMeasure: the shape does not have one of the flags.
    """
    shape, *flags = shlex.split(run)
    parser = argparse.ArgumentParser(prog=f"--run '{run}'", usage="SHAPE, then the load flags of bench.serve")
    add_load_flags(parser)
    add_repeat_flags(parser)
    shared = ["--repeats", str(args.repeats), *(["--flush"] if args.flush else []), "--tokenizer", str(args.tokenizer)]
    return load_of(parser.parse_args([*shared, "--seed", str(seed), "--shape", shape, *flags]))


def _run_alone(args: argparse.Namespace, name: str, loads: dict[str, Load], findings: Findings) -> None:
    with _noting_missing(name, findings), _server(args, name) as server:
        findings.ready_s[name] = server.ready_s
        for title, asked in loads.items():
            _measure({name: _url(args, name, server)}, title, asked, findings)
        findings.resident_mb[name] = family_mb(server.process_id)


def _run_together(args: argparse.Namespace, loads: dict[str, Load], findings: Findings) -> None:
    with ExitStack() as stack:
        servers = {}
        for name in args.names:
            with _noting_missing(name, findings):
                servers[name] = stack.enter_context(_server(args, name))
                findings.ready_s[name] = servers[name].ready_s
        urls = {name: _url(args, name, server) for name, server in servers.items()}
        for title, asked in loads.items() if urls else ():
            _measure(urls, title, asked, findings)
        findings.resident_mb |= {name: family_mb(server.process_id) for name, server in servers.items()}


def _measure(urls: dict[str, str], title: str, asked: Load, findings: Findings) -> None:
    print(f"{', '.join(urls)}: {title}", file=sys.stderr)
    runs = asyncio.run(measure(urls, asked, model=None))
    findings.has_failures |= bool(report_failures(runs))
    for name, each in runs.items():
        findings.rows[title][name] = [summary.summarise(run) for run in each]


@contextlib.contextmanager
def _noting_missing(name: str, findings: Findings) -> Iterator[None]:
    try:
        yield
    except CannotMeasure as error:
        findings.missing[name] = str(error)
        kind = "not found" if isinstance(error, NotStarted) else "given up"
        print(f"{kind}: {name}: {error}", file=sys.stderr)


def _server(args: argparse.Namespace, name: str) -> AbstractContextManager[Server]:
    flags = _axils(args).get(name)
    if flags is not None:
        return launched(flags, until_answered=True)
    return peer(script_of(args.peers), name, within_s=args.ready_within)


def _url(args: argparse.Namespace, name: str, server: Server) -> str:
    return server.url + GENERATE if name in _axils(args) else server.url


def _axils(args: argparse.Namespace) -> dict[str, list[str]]:
    """The names under which axil runs, each with its flags."""
    return {AXIL: args.serve_flags, **dict(args.also_axil)}


def _named_flags(text: str) -> tuple[str, list[str]]:
    name, equals, flags = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must look like axil-int8='--quantize int8', got {text}")
    return name, shlex.split(flags)


def _report(args: argparse.Namespace, loads: dict[str, Load], findings: Findings) -> None:
    figures = {f"{name}_ready_s": ready_s for name, ready_s in findings.ready_s.items()}
    figures |= {f"{name}_resident_mb": resident_mb for name, resident_mb in findings.resident_mb.items()}
    short: dict[str, list[str]] = {
        figure: [summary.shown(each[name]) if name in each else "-" for name in findings.ready_s]
        for figure, each in (("ready_s", findings.ready_s), ("resident_mb", findings.resident_mb))
    }
    for number, (title, rows) in enumerate(findings.rows.items(), start=1):
        if not rows:
            continue
        print(f"\n{number}. {title}\n{comparison.table(rows)}")
        name = f"run{number}_{loads[title].name}"
        figures |= comparison.named_figures(name, rows)
        short |= {
            f"{number}. {figure}": [_cell(rows, server, figure) for server in findings.ready_s]
            for figure in SHORT_FIGURES
        }
        if args.plots is not None:
            print(f"drawn: {plots.draw(args.plots, name, rows)}")
    print(f"\n{summary.text_table(list(findings.ready_s), short)}")
    for name, why in findings.missing.items():
        print(f"not found: {name}: {why}")
    results.write(args.json, figures, results.command_line("bench.compare"))


def _cell(rows: dict[str, comparison.Rows], server: str, figure: str) -> str:
    if server not in rows:
        return "-"
    spread = comparison.spreads(rows[server]).get(figure)
    return "not told" if spread is None else summary.shown(spread.median)


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
