"""What does a forced answer cost per token, in the model runner's process, beside its step?

Lets a grammar follow an answer of each kind: the mask of the tokens that may come next, and the step over the one that
came. The vocabulary is the embedded model's.
    python -m bench.grammar_cost
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from bench import results, summary
from bench.command import count, exit_status, parser_of
from runtime.model_files import tokenizer_files
from runtime.text.grammar import choice_grammar, json_grammar, regex_grammar
from runtime.text.tokenizer import Tokenizer
from wire.sampling import Grammar

_PERSON = {"name": "Ada Lovelace", "born": 1815, "is_alive": False, "tags": ["mathematics", "engines"], "note": None}
_PERSON_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "born": {"type": "integer", "minimum": 0, "maximum": 2100},
        "is_alive": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        "note": {"type": ["string", "null"]},
    },
    "required": ["name", "born", "is_alive", "tags", "note"],
    "additionalProperties": False,
}
_LIST_SCHEMA = {"type": "array", "items": _PERSON_SCHEMA}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = parser_of("bench.grammar_cost", __doc__)
    parser.add_argument("--repeats", type=count, default=20, help="answers of each kind (default: 20)")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    figures = measure(args)
    print(summary.table(figures))
    flat = {f"{kind}_{name}": value for kind, row in figures.items() for name, value in row.items()}
    results.write(args.json, flat, results.command_line("bench.grammar_cost"))
    return 0


def measure(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Milliseconds a token for each kind of grammar."""
    directory, _ = tokenizer_files(None)
    tokenizer = Tokenizer.load(directory)
    vocabulary = LLTokenizer(tokenizer.to_json(), eos_token=list(tokenizer.eos_token_ids))
    mask = allocate_token_bitmask(1, vocabulary.vocab_size)
    return {
        kind: _row(
            [
                _costs_ms(grammar, tokenizer.encode(text, add_special_tokens=False), vocabulary, mask)
                for _ in range(args.repeats)
            ]
        )
        for kind, (grammar, text) in _answers().items()
    }


def _answers() -> Mapping[str, tuple[Grammar, str]]:
    people = json.dumps([_PERSON] * 10)
    return {
        "any JSON": (json_grammar({}, field="f"), people),
        "a schema": (json_grammar(_LIST_SCHEMA, field="f"), people),
        "a regex": (regex_grammar(r"([a-z]+ )+\d{4}", field="f"), "some words in a row " * 20 + "2026"),
        "a choice": (choice_grammar(["yes, by all means", "no, not at all"], field="f"), "no, not at all"),
    }


def _costs_ms(
    grammar: Grammar,
    token_ids: Sequence[int],
    vocabulary: LLTokenizer,
    mask: NDArray[np.int32],
) -> list[float]:
    matcher = LLMatcher(vocabulary, grammar.source, log_level=0)
    costs_ms = []
    for token_id in token_ids:
        began_s = time.perf_counter()
        fill_next_token_bitmask(matcher, mask, 0)
        assert matcher.consume_token(token_id), matcher.get_error()
        costs_ms.append(1e3 * (time.perf_counter() - began_s))
    return costs_ms


def _row(runs: Sequence[Sequence[float]]) -> dict[str, float]:
    costs = sorted(cost for run in runs for cost in run)
    return {
        "tokens": len(runs[0]),
        "mean_ms": statistics.fmean(costs),
        "p50_ms": costs[len(costs) // 2],
        "p99_ms": costs[len(costs) * 99 // 100],
    }


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
