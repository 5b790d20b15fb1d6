"""How far is the gap report from the truth? Recorded traffic through what estimates online, beside an exact count.

    python -m bench.gap --traces DIR
    python -m bench.gap --traces DIR --num-sessions 60 --sampled-pages 256 1024 4096
Takes the sessions of a coding agent and, where they lie there too, Mooncake's traces. Prompts in their order, one at a
time, outputs not inserted: the same replay for the product's tree, the exact ideals (bench/simulation/ceiling.py) and
the estimates (radix/ideals.py), which follow a sample of the pages. Percent of prompt tokens. First of all, what the
scheduler's processor pays for a request, from its page hashes to its last sum.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import results, summary
from bench.command import CannotMeasure, count, directory, exit_status, parser_of
from bench.simulation import inputs
from bench.simulation.ceiling import Ceiling
from bench.simulation.inputs import Input
from bench.simulation.instant import NAMESPACE, Hits, make_cache, replay
from radix.ideals import POOL_FACTORS, SAMPLED_PAGES, Ideals
from radix.journal import chained, hash_of_namespace
from scheduler.config import SchedulerConfig
from scheduler.gap import GapMeter
from scheduler.request import ClientId, Request, TokenIds
from wire.messages.to_tokenizer import Reuse
from wire.sampling import SamplingParams

SESSIONS = "claude_code_sessions_delta.jsonl.gz"
MOONCAKE = ("mooncake_conversation_trace.jsonl", "mooncake_synthetic_trace.jsonl")
MOST_GAP_S = 600.0
AGENT_POOLS = (500_000, 1_000_000, 2_000_000)
MOONCAKE_POOLS = (512 * 1000, 512 * 10_000, 512 * 30_000)
COST_TOKENS = (250, 1000, 8000)
COST_PAGES, COST_PAGE_TOKENS = 62_500, 16
COST_ROUNDS, COST_REQUESTS = 9, 400
_ALL = 1 << 40
"""More pages to follow than there are: nothing is sampled."""


@dataclass(frozen=True, slots=True)
class Hashed:
    """A prompt's page hashes, and its length in tokens."""

    hashes: list[int]
    num_tokens: int


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print a table for each input, write the figures."""
    args = _parse(argv)
    figures = {f"cost_{tokens}_tokens_us": cost_us(tokens) for tokens in COST_TOKENS}
    print(f"a request's cost, in a pool of {COST_PAGES * COST_PAGE_TOKENS:,} tokens")
    print(summary.table({"": figures}), flush=True)
    for given, pools in _inputs(args):
        exact = Ceiling(given.prompts, block_tokens=given.block_tokens) if given.prompts else None
        assert exact is not None and given.prompts is not None
        prompts = hashed(given)
        for pool_tokens in pools:
            columns = compared(given, exact, prompts, pool_tokens=pool_tokens, sampled_pages=args.sampled_pages)
            print(f"\n{given.name}, {len(prompts):,} requests, a pool of {pool_tokens:,} tokens")
            print(summary.table(columns), flush=True)
            for name, column in columns.items():
                for figure, value in column.items():
                    figures[f"{given.name}_{pool_tokens}_{name.replace(' ', '_')}_{figure}"] = value
    results.write(args.json, figures, results.command_line("bench.gap"))
    return 0


def cost_us(prompt_tokens: int) -> float:
    """Processor time of `GapMeter` for a request: half of its prompt is known, it adds 64 tokens. Best of rounds."""
    meter = GapMeter(num_pages=COST_PAGES, page_tokens=COST_PAGE_TOKENS)
    draw = np.random.default_rng(1)
    known = [draw.integers(0, 2**31 - 1, prompt_tokens // 2, np.int32) for _ in range(64)]
    times_us = []
    for round_number in range(COST_ROUNDS):
        requests = []
        for i in range(COST_REQUESTS):
            fresh = draw.integers(0, 2**31 - 1, prompt_tokens - prompt_tokens // 2 + 64, np.int32)
            token_ids = np.concatenate([known[i % len(known)], fresh])
            requests.append(_request(f"{round_number} {i}", token_ids, prompt_tokens))
        began_s = time.process_time()
        for request in requests:
            meter.scheduled(request, now_s=0.0)
            meter.ended(request, computed_tokens=len(request.prompt_ids) + 64)
        times_us.append(1e6 * (time.process_time() - began_s) / COST_REQUESTS)
    return min(times_us)


def _request(request_id: str, token_ids: TokenIds, prompt_tokens: int) -> Request:
    request = Request(
        request_id=request_id,
        client=ClientId(b""),
        namespace=NAMESPACE,
        sampling=SamplingParams(),
        prompt_ids=token_ids[:prompt_tokens],
        prompt_tokens=prompt_tokens,
        max_new_tokens=64,
        stop_token_ids=frozenset(),
        arrival=0,
        arrived_s=0.0,
        reuse=Reuse(prompt_tokens=prompt_tokens, cached_tokens=0, copied_tokens=0, queue_s=0.0),
    )
    request.output.extend(token_ids[prompt_tokens:].tolist())
    return request


def hashed(given: Input) -> list[Hashed]:
    """The input's prompts as the scheduler would hash them, for pages of its block's size."""
    assert given.prompts is not None
    before = hash_of_namespace(NAMESPACE)
    return [
        Hashed(chained(before, prompt.token_ids.tobytes(), page_tokens=given.block_tokens), prompt.num_tokens)
        for prompt in given.prompts()
    ]


def compared(
    given: Input, exact: Ceiling, prompts: list[Hashed], *, pool_tokens: int, sampled_pages: Sequence[int]
) -> dict[str, dict[str, float]]:
    """One column of what is so, and one for each size of the sample."""
    assert given.prompts is not None
    pages = pool_tokens // given.block_tokens
    hits, really = _measured(given, pages)
    columns = {
        "exact": {
            "measured_percent": hits.percent,
            "ceiling_percent": exact.hits(pool_blocks=_ALL, rule="lru").percent,
            "oracle_percent": exact.hits(pool_blocks=pages, rule="farthest").percent,
            **{
                f"lru_x{factor:g}_percent": exact.hits(pool_blocks=int(pages * factor), rule="lru").percent
                for factor in POOL_FACTORS
            },
        }
    }
    for sample in sampled_pages:
        columns[f"{sample} sampled"] = estimated(prompts, really, pages, given.block_tokens, sampled_pages=sample)
    return columns


def _measured(given: Input, num_pages: int) -> tuple[Hits, list[int]]:
    """What the product's tree finds, in all and in pages of each prompt."""
    assert given.prompts is not None
    cache = make_cache(SchedulerConfig(), num_pages=num_pages, page_tokens=given.block_tokens)
    hits, really = Hits(), []
    for prompt in given.prompts():
        found = replay([prompt], cache)
        hits.add(found.prompt_tokens, found.cached_tokens)
        really.append(-(-found.cached_tokens // given.block_tokens))
    return hits, really


def estimated(
    prompts: list[Hashed], really: list[int], num_pages: int, page_tokens: int, *, sampled_pages: int
) -> dict[str, float]:
    """What the online estimate says after all prompts, and what a request has cost."""
    ideals = Ideals(num_pages=num_pages, sampled_pages=sampled_pages)
    began_s = time.process_time()
    found = [ideals.ask(ideals.sample(prompt.hashes)) for prompt in prompts]
    elapsed_s = time.process_time() - began_s
    num_pages_asked = sum(len(prompt.hashes) for prompt in prompts)
    asked_percent = 100 * num_pages_asked * page_tokens / sum(prompt.num_tokens for prompt in prompts)

    sampled_really = sum(
        len(ideals.sample(prompt.hashes[:count])) for prompt, count in zip(prompts, really, strict=True)
    )

    def percent(counts: Iterator[float]) -> float:
        return asked_percent * ideals.found_share(
            sum(counts), really=sampled_really, whole_really=sum(really), whole_pages=num_pages_asked
        )

    return {
        "ceiling_percent": percent(each.seen for each in found),
        "oracle_percent": percent(each.oracle for each in found),
        **{f"lru_x{factor:g}_percent": percent(each.lru[i] for each in found) for i, factor in enumerate(POOL_FACTORS)},
        "followed_pages_count": ideals.num_followed,
        "cost_per_request_us": 1e6 * elapsed_s / len(prompts),
        "pages_per_request_count": num_pages_asked / len(prompts),
    }


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("bench.gap", __doc__)
    parser.add_argument("--traces", type=directory, required=True, metavar="DIR", help="where the traces lie")
    parser.add_argument("--num-sessions", type=count, default=20, help="sessions drawn from the file (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")
    parser.add_argument(
        "--sampled-pages",
        nargs="+",
        type=count,
        default=[SAMPLED_PAGES],
        help=f"sizes of the sample (default: {SAMPLED_PAGES}, the server's)",
    )
    results.add_json_flag(parser)
    return parser.parse_args(argv)


def _inputs(args: argparse.Namespace) -> Iterator[tuple[Input, tuple[int, ...]]]:
    directory: Path = args.traces
    names = [name for name in (SESSIONS, *MOONCAKE) if (directory / name).is_file()]
    if not names:
        raise CannotMeasure(f"--traces: {directory} has none of {', '.join((SESSIONS, *MOONCAKE))}")
    for name in names:
        if name == SESSIONS:
            drawn = {"num_sessions": args.num_sessions, "concurrency": 1, "most_gap_s": MOST_GAP_S, "seed": args.seed}
            yield inputs.agents(directory / name, **drawn), AGENT_POOLS
        else:
            yield inputs.mooncake(directory / name, speed=1, concurrency=None), MOONCAKE_POOLS


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
