"""How much sooner does the first token of a 2,000-token prompt come when its prefix is cached?

Sends distinct prompts of about 2,000 tokens, each twice: cold, then warm. One request at a time.
    python -m bench.warm_ttft --launch
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import uvloop

from bench import results, summary
from bench.client import Client, connected
from bench.command import CannotMeasure, count, exit_status, parser_of
from bench.server import add_server_flags, chosen
from bench.summary import Answer, Failure
from bench.words import text_of

PROMPT_TOKENS = 2000
OUTPUT_TOKENS = 4
TIMEOUT_S = 300.0
COLD_BELOW = 0.05
WARM_ABOVE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two times of one prompt."""

    prompt_tokens: int
    cold_ms: float
    warm_ms: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = parser_of("bench.warm_ttft", __doc__)
    add_server_flags(parser)
    parser.add_argument("--repeats", type=count, default=7, help="prompts, each sent twice (default: 7)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other prompts (default: 1)")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    with chosen(args) as url:
        pairs = uvloop.run(measure(url, args))
    print(summary.table({f"prompt {i}": _row(pair) for i, pair in enumerate(pairs, start=1)}))
    figures = figures_of(pairs)
    print(summary.table({"median": figures}))
    for name, values in (("cold", [pair.cold_ms for pair in pairs]), ("warm", [pair.warm_ms for pair in pairs])):
        print(f"{name}: {min(values):.1f} to {max(values):.1f} ms")
    results.write(args.json, figures, results.command_line("bench.warm_ttft"))
    return 0


def figures_of(pairs: Sequence[Pair]) -> dict[str, float]:
    """The medians over all prompts, and the ratio of the two."""
    cold_ms = statistics.median(pair.cold_ms for pair in pairs)
    warm_ms = statistics.median(pair.warm_ms for pair in pairs)
    return {
        f"ttft_cold_{PROMPT_TOKENS}_ms": cold_ms,
        f"ttft_warm_{PROMPT_TOKENS}_ms": warm_ms,
        "ttft_warm_over_cold_ratio": warm_ms / cold_ms,
    }


async def measure(url: str, args: argparse.Namespace) -> list[Pair]:
    """Time `--repeats` prompts, after one that only shows how many words make 2,000 tokens.

    Raises:
        CannotMeasure: a request failed, a cold prompt was cached, or a warm one was not.
    """
    async with connected(url, args.model) as client:
        trial = await _ask(client, text_of(PROMPT_TOKENS, seed=args.seed))
        num_words = round(PROMPT_TOKENS * PROMPT_TOKENS / trial.prompt_tokens)
        pairs = []
        for number in range(1, args.repeats + 1):
            prompt = text_of(num_words, seed=args.seed + number)
            if not await client.flush() and number == 1:
                print("the server has no /flush_cache; the prompts differ all the same", file=sys.stderr)
            pairs.append(_pair(await _ask(client, prompt), await _ask(client, prompt)))
    return pairs


def _pair(cold: Answer, warm: Answer) -> Pair:
    if cold.ttft_s is None or warm.ttft_s is None:
        raise CannotMeasure("an answer had no text, so there is no time to its first token; use another --seed")
    if cold.cached_tokens is not None and cold.cached_tokens > COLD_BELOW * cold.prompt_tokens:
        raise CannotMeasure(f"{cold.cached_tokens} tokens of a cold prompt were cached; use another --seed")
    if warm.cached_tokens is not None and warm.cached_tokens < WARM_ABOVE * warm.prompt_tokens:
        raise CannotMeasure(f"only {warm.cached_tokens} of {warm.prompt_tokens} tokens of a warm prompt were cached")
    return Pair(prompt_tokens=cold.prompt_tokens, cold_ms=1e3 * cold.ttft_s, warm_ms=1e3 * warm.ttft_s)


async def _ask(client: Client, prompt: str) -> Answer:
    match await client.complete(prompt, max_tokens=OUTPUT_TOKENS, timeout_s=TIMEOUT_S):
        case Failure() as failure:
            raise CannotMeasure(f"a request failed: {failure.kind}: {failure.detail}")
        case Answer() as answer:
            return answer


def _row(pair: Pair) -> dict[str, float]:
    return {"prompt_tokens": pair.prompt_tokens, "cold_ms": pair.cold_ms, "warm_ms": pair.warm_ms}


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
