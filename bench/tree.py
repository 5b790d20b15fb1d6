"""Measures the tree and the scheduler's steps: CPU time of matching, evicting, bookkeeping, planning; memory a token.

Medians of several repeats, with the least and the greatest, beside what is aimed for; then how each grows with ten
times as much cached or waiting. All times are CPU time of one thread, so that other work on the machine counts as
little as possible; the garbage collector is off, as in the scheduler's process.

With `--trace` also replays public traces through the tree and prints hit rates by pool size for every eviction policy;
with `--peers-python` also runs SGLang's trees and vLLM's block pool where one of those interpreters can import them.

    python -m bench.tree --json tree.json
    python -m bench.tree --only-traces --trace mooncake_conversation_trace.jsonl
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from pathlib import Path

from radix.eviction import POLICIES

from . import results
from . import scheduler_steps as steps
from . import tree_shapes as shapes
from .command import exit_status, parser_of, positive
from .peer_trees import PEERS
from .trace_replay import read_mooncake, read_sessions, rows
from .tree_peers import print_peers

MOONCAKE_POOLS = (1_000, 3_000, 10_000, 30_000, 50_000)
SESSION_POOLS_MTOK = (0.5, 1, 2, 4, 8)

GOALS = {
    "match_64k_chain_ms": 0.1,
    "match_64k_forked_ms": 1.0,
    "match_262k_chain_ms": 0.4,
    "match_262k_forked_ms": 4.0,
    "evict_one_of_100k_us": 20.0,
    "evict_one_of_1m_us": 20.0,
    "bytes_per_cached_token": 12.0,
    "bookkeeping_agent_us": 35.0,
    "bookkeeping_few_shot_us": 28.0,
    "bookkeeping_unique_us": 14.0,
    "plan_128x32k_idle_ms": 0.2,
    "plan_10k_idle_ms": 1.0,
    "plan_10k_after_commit_ms": 3.0,
    "decode_step_256_ms": 0.5,
}
"""What is aimed for, on two quiet cores."""


class Report:
    """Prints each figure as it is measured, and keeps the medians."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        print(f"{'figure':<28}{'median':>10}{'least':>10}{'greatest':>10}{'goal':>8}   repeats")

    def add(self, name: str, values: Iterable[float]) -> None:
        """Take the repeats of one figure."""
        ordered = sorted(values)
        self.figures[name] = middle = shapes.middle(ordered)
        goal = f"{GOALS[name]:>8g}" if name in GOALS else " " * 8
        print(f"{name:<28}{middle:>10.3f}{ordered[0]:>10.3f}{ordered[-1]:>10.3f}{goal}   {len(ordered)}", flush=True)


def main() -> int:
    """Measure, print, write."""
    parser = parser_of("bench.tree", __doc__)
    results.add_json_flag(parser)
    parser.add_argument("--repeats", type=int, default=15, help="repeats of a match or a trace")
    parser.add_argument("--trace", type=Path, action="append", default=[], metavar="FILE", help="Mooncake or sessions")
    parser.add_argument("--sessions", type=int, default=20, help="sessions drawn from a trace of sessions")
    parser.add_argument("--seed", type=int, default=1, help="of that draw")
    parser.add_argument("--only-traces", action="store_true", help="leave the time measurements out")
    parser.add_argument("--without-1m", action="store_true", help="leave out the million leaves, which take 2 GB")
    parser.add_argument(
        "--peers-python", type=Path, nargs="+", default=[], metavar="FILE", help="interpreters that have SGLang or vLLM"
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="only these (default: all)")
    parser.add_argument(
        "--peer-limit-s", type=positive, default=60.0, metavar="S", help="most time for an operation (default: 60)"
    )
    args = parser.parse_args()
    if not args.only_traces:
        gc.disable()
        report = Report()
        _measure_tree(report, repeats=args.repeats, with_million=not args.without_1m)
        _measure_steps(report)
        ratios = print_peers(args.peers_python, report.figures, names=args.peers, limit_s=args.peer_limit_s)
        results.write(args.json, report.figures | ratios, results.command_line("bench.tree"))
    for path in args.trace:
        _print_trace(path, num_sessions=args.sessions, seed=args.seed)
    return 0


def _measure_tree(report: Report, *, repeats: int, with_million: bool) -> None:
    for num_turns, size in ((1024, "64k"), (4096, "262k")):
        for is_forked, kind in ((False, "chain"), (True, "forked")):
            cache, tokens = shapes.chain(num_turns, is_forked=is_forked)
            shapes.match_ms(cache, tokens)
            report.add(f"match_{size}_{kind}_ms", [shapes.match_ms(cache, tokens) for _ in range(repeats)])
            del cache
    for num_leaves, size in ((10_000, "10k"), (100_000, "100k"), (1_000_000, "1m")):
        if num_leaves < 1_000_000 or with_million:
            report.add(f"evict_one_of_{size}_us", shapes.evictions_us(shapes.full_of_leaves(num_leaves), count=2000))
    report.add("bytes_per_cached_token", [shapes.bytes_per_cached_token()])
    for name, trace in (("agent", shapes.agent), ("few_shot", shapes.few_shot), ("unique", shapes.unique)):
        requests = trace()
        report.add(f"bookkeeping_{name}_us", [shapes.bookkeeping_us(requests) for _ in range(repeats)])
        many = [shapes.bookkeeping_us(requests, pool_tokens=10 * shapes.POOL_TOKENS) for _ in range(repeats // 3 or 1)]
        report.add(f"bookkeeping_{name}_10x_us", many)


def _measure_steps(report: Report) -> None:
    bench = steps.crowded(num_waiting=128, prompt_tokens=32768, cached_tokens=24576)
    report.add("plan_128x32k_idle_ms", steps.idle_plans_ms(bench, count=200))
    for num_waiting, size in ((1_000, "1k"), (10_000, "10k")):
        bench = steps.crowded(num_waiting=num_waiting, prompt_tokens=2048, cached_tokens=1024)
        report.add(f"plan_{size}_after_commit_ms", steps.plans_after_commit_ms(bench, count=25))
        report.add(f"plan_{size}_idle_ms", steps.idle_plans_ms(bench, count=100))
    for num_running in (32, 256):
        report.add(f"decode_step_{num_running}_ms", steps.decode_steps_ms(num_running=num_running, count=200))


def _print_trace(path: Path, *, num_sessions: int, seed: int) -> None:
    if path.suffix == ".gz":
        trace = read_sessions(path, num_sessions=num_sessions, seed=seed)
        pools = [int(pool * 1e6) // trace.block_tokens for pool in SESSION_POOLS_MTOK]
        print(f"\n{path.name}: {num_sessions} sessions drawn with seed {seed}, interleaved")
    else:
        trace, pools = read_mooncake(path), list(MOONCAKE_POOLS)
        print(f"\n{path.name}: in the order of the trace")
    print(f"share of prompt tokens found cached, by pool size in pages of {trace.block_tokens} tokens")
    for row in rows(trace, POLICIES, pools):
        print(row, flush=True)


if __name__ == "__main__":
    sys.exit(exit_status(main))
