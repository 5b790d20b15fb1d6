"""How much does the scheduler reuse, how long do requests wait, and what does it cost? By simulation, in virtual time.

The scheduler and the tree are those that serve; the model runner only takes time. Answers the goals (W13 starvation,
W14 herd, W15 overhead), the growth of the scheduler's time, the simulator's speed, the shapes W9 to W11 of bench.serve,
and recorded traces:
    python -m bench.simulate --json figures.json
    python -m bench.simulate --only w9 --policy longest-prefix fcfs --pool-tokens 20000 60000 --plots .
    python -m bench.simulate --only traces --trace conversation.jsonl --sessions sessions.jsonl.gz --instant
    python -m bench.simulate --launch --only w9 w14 --scale 1/8
A step costs --base-ms + --prefill-us x prefill tokens + --context-us x tokens of context + --row-us x decode rows, or
what --step-table says. --instant takes the prompts of traces one after the other through the tree alone. --launch
starts axil serve and sends it the shapes too (--against: to one that runs already): are as many tokens found cached?
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import results
from bench.command import count, directory, exit_status, parser_of, positive
from bench.plots import require_matplotlib
from bench.server import add_launch_flags
from bench.shapes import SHAPES
from bench.simulation import against, inputs, sections
from bench.simulation.inputs import Input
from bench.simulation.price import LinearPrice, Price, read_prices
from bench.simulation.sections import Figures, Setting
from scheduler.config import SchedulerConfig
from wire.flags import add_flags, flag_names, from_flags

COMPARED = [name for name in ("policy", "eviction") if name in flag_names(SchedulerConfig)]
GOALS = {
    "w14": sections.w14,
    "w13": sections.w13,
    "w15": sections.w15,
    "growth": sections.growing,
    "speed": sections.simulating,
}
SHAPE_NAMES = [name for name in SHAPES if name not in (*GOALS, "w12")]
DEFAULT = (*GOALS, "w9", "w10", "w11", "traces")
NO_QUEUE_LIMIT = 2**31


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, print the tables, write the figures."""
    args = parse(argv)
    if args.plots is not None:
        require_matplotlib()
    setting = Setting(
        configs=_configs(args),
        price=_price(args),
        seed=args.seed,
        pools=args.pool_tokens,
        page_tokens=args.page_tokens,
        plots=args.plots,
    )
    figures: Figures = {}
    if args.against or args.launch:
        figures |= against.compared(args, setting)
    else:
        for name in args.only:
            if name in GOALS:
                figures |= GOALS[name](setting)
        for given in _inputs(args):
            figures |= (sections.instant if args.instant else sections.compared)(setting, given)
    results.write(args.json, figures, results.command_line("bench.simulate"))
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = parser_of("bench.simulate", __doc__)
    parser.add_argument(
        "--only", nargs="+", choices=(*GOALS, *SHAPE_NAMES, "traces"), help=f"default: {' '.join(DEFAULT)}"
    )
    parser.add_argument("--trace", nargs="+", type=Path, default=[], metavar="FILE", help="W12: Mooncake's JSON lines")
    parser.add_argument("--sessions", type=Path, metavar="FILE", help="an agent's sessions, gzipped JSON lines")
    parser.add_argument("--instant", action="store_true", help="traces only: the tree alone, in order, no outputs")
    parser.add_argument("--pool-tokens", nargs="+", type=count, default=(), help="pools; default: fitting the input")
    parser.add_argument("--page-tokens", type=count, default=16, help="tokens in a page (default: 16)")
    parser.add_argument("--num-sessions", type=count, default=40, help="sessions drawn from the file (default: 40)")
    parser.add_argument("--open-sessions", type=count, default=20, help="sessions open at any time (default: 20)")
    parser.add_argument("--most-gap", type=positive, default=600.0, metavar="S", help="longest pause (default: 600)")
    parser.add_argument("--open-requests", type=count, metavar="N", help="--trace: N always open, at no recorded time")
    parser.add_argument("--trace-speed", type=positive, default=1.0, help="how much faster than recorded (default: 1)")
    parser.add_argument("--scale", type=positive, default=1.0, help="share of the shapes' token counts (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other requests (default: 1)")
    parser.add_argument("--against", metavar="URL", help="send the shapes of --only to this server too, and compare")
    parser.add_argument(
        "--launch", action="store_true", help="--against an axil serve that is started and stopped here"
    )
    add_launch_flags(parser)
    parser.add_argument("--plots", type=directory, metavar="DIR", help="also draw hit rates and waiting times into DIR")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="of the server asked (--launch: of the embedded model)"
    )
    results.add_json_flag(parser)
    price = parser.add_argument_group("what a step costs")
    defaults = LinearPrice()
    price.add_argument("--step-table", type=Path, metavar="FILE", help="measured: see bench/simulation/price.py")
    for flag, value, what in (
        ("--base-ms", 1e3 * defaults.base_s, "every step"),
        ("--prefill-us", 1e6 * defaults.prefill_token_s, "a prefill token"),
        ("--context-us", 1e6 * defaults.context_token_s, "a token of context that the step reads"),
        ("--row-us", 1e6 * defaults.decode_row_s, "a decode row"),
    ):
        price.add_argument(flag, type=_not_negative, default=value, help=f"{what} (default: {value:g})")
    parser.conflict_handler = "resolve"
    add_flags(parser, SchedulerConfig, title="scheduler, as axil serve takes them")
    compared = parser.add_argument_group("compared side by side")
    for name in COMPARED:
        field = SchedulerConfig.__dataclass_fields__[name]
        compared.add_argument(
            f"--{name}",
            nargs="+",
            choices=field.metadata["choices"],
            default=[field.default],
            help=f"one or more, side by side; {field.metadata['help'].lower()} (default: {field.default})",
        )
    # The account here knows every cause from a record of everything; what the scheduler itself finds isn't shown.
    quiet = {"explain_misses": False, "gap_report": False}
    parser.set_defaults(max_queued_requests=NO_QUEUE_LIMIT, max_queued_tokens=NO_QUEUE_LIMIT, **quiet)
    args = parser.parse_args(argv)
    if (args.against or args.launch) and not args.only:
        parser.error("--against and --launch need --only with the shapes to send")
    if args.against and args.launch:
        parser.error("--launch starts a server of its own; leave out --against")
    if args.serve_flags and not args.launch:
        parser.error("--serve-flags are for the server that --launch starts; add --launch")
    if args.instant:
        args.only = args.only or ["traces"]
    if args.only and "traces" in args.only and not (args.trace or args.sessions):
        parser.error("--only traces needs --trace or --sessions")
    args.only = args.only or DEFAULT
    return args


def _configs(args: argparse.Namespace) -> dict[str, SchedulerConfig]:
    """One configuration for each choice of policies, by name."""
    configs = {}
    for choice in itertools.product(*(getattr(args, name) for name in COMPARED)):
        one = argparse.Namespace(**{**vars(args), **dict(zip(COMPARED, choice, strict=True))})
        configs[" ".join(choice)] = from_flags(SchedulerConfig, one)
    return configs


def _price(args: argparse.Namespace) -> Price:
    if args.step_table is not None:
        return read_prices(args.step_table)
    return LinearPrice(
        base_s=args.base_ms / 1e3,
        prefill_token_s=args.prefill_us / 1e6,
        context_token_s=args.context_us / 1e6,
        decode_row_s=args.row_us / 1e6,
    )


def _inputs(args: argparse.Namespace) -> Iterator[Input]:
    """The shapes and traces to compare; says what is left out because nobody has said where it lies."""
    for name in args.only:
        if name in SHAPE_NAMES:
            yield inputs.shape(name, scale=args.scale, seed=args.seed)
    if "traces" not in args.only:
        return
    for path in args.trace:
        yield inputs.mooncake(path, speed=args.trace_speed, concurrency=args.open_requests)
    if args.sessions is not None:
        yield inputs.agents(
            args.sessions,
            num_sessions=args.num_sessions,
            concurrency=args.open_sessions,
            most_gap_s=args.most_gap,
            seed=args.seed,
        )
    for flag, is_given, what in (
        ("--trace", bool(args.trace), "W12, Mooncake's traces"),
        ("--sessions", args.sessions is not None, "the sessions of a coding agent"),
    ):
        if not is_given:
            print(f"\nnot simulated: {what}, since no {flag} FILE was given", file=sys.stderr)


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return value


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
