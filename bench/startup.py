"""How long does `axil serve` take from its process's start to ready, the first time and later?

The first time means an empty cache directory (converted tokenizer and configuration are made anew); the files of the
model and of Python may still be in the page cache of the operating system. Ready means that /health answers 200.
    python -m bench.startup
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence

from tqdm import tqdm

from bench import results, summary
from bench.command import count, exit_status, parser_of
from bench.server import add_launch_flags, launched


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = parser_of("bench.startup", __doc__)
    add_launch_flags(parser)
    parser.add_argument("--repeats", type=count, default=3, help="pairs of a first and a later start (default: 3)")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    pairs = [starts(args.serve_flags) for _ in tqdm(range(args.repeats), unit=" pairs", disable=None)]
    rows = [{"start_first_s": first_s, "start_later_s": later_s} for first_s, later_s in pairs]
    figures = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    print(summary.table({**{f"repeat {i}": row for i, row in enumerate(rows, start=1)}, "median": figures}))
    results.write(args.json, figures, results.command_line("bench.startup"))
    return 0


def starts(serve_flags: Sequence[str], *, command: Sequence[str] | None = None) -> tuple[float, float]:
    """Seconds of one start with an empty cache directory, and of the next one with what the first left there."""
    with tempfile.TemporaryDirectory(prefix="axil-bench-") as cache:
        environment = {"XDG_CACHE_HOME": cache}
        with launched(serve_flags, environment=environment, command=command) as first:
            pass
        with launched(serve_flags, environment=environment, command=command) as later:
            pass
    return first.ready_s, later.ready_s


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
