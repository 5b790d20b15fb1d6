"""What does a forced answer cost per token, in the model runner's process, beside its step?

Lets a grammar follow an answer of each kind, as the runner does for a row: all logits but those of the tokens that may
come next are ruled out, then the token that came is taken, with those that must follow it. The vocabulary is the
embedded model's. On a busy machine a mean over few tokens says little: one of them may have been put aside for 3 ms.
    python -m bench.grammar_cost
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch

from bench import results, summary
from bench.command import count, exit_status, parser_of
from model_runner.grammars import GrammarRules
from runtime.model_files import tokenizer_files
from runtime.text.grammar import choice_grammar, json_grammar, regex_grammar
from runtime.text.tokenizer import Tokenizer
from wire.messages.to_runner import Admission
from wire.sampling import Grammar, SamplingParams

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
    torch.set_num_threads(1)
    logits_BV = torch.randn(1, tokenizer.vocabulary)
    rules = GrammarRules(vocabulary=tokenizer.vocabulary, tokenizer=directory / "tokenizer.json")
    eos_token_ids = tuple(tokenizer.eos_token_ids)
    return {
        kind: _row(
            [
                _costs_ms(
                    msgspec.structs.replace(grammar, eos_token_ids=eos_token_ids),
                    tokenizer.encode(text, add_special_tokens=False),
                    rules,
                    logits_BV,
                )
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


def _costs_ms(grammar: Grammar, token_ids: Sequence[int], rules: GrammarRules, logits_BV: torch.Tensor) -> list[float]:
    sampling = SamplingParams(grammar=grammar)
    admission = Admission(row=0, request_id="", sampling=sampling, num_cached_tokens=0, page_ids=b"")
    rules.admit(admission)
    rules.admit(msgspec.structs.replace(admission, row=1))
    rules.applied(logits_BV, [1], np.zeros(1, np.int64))  # they are compiled in turn, so row 0 is ready as well
    costs_ms = []
    for position, token_id in enumerate(token_ids):
        positions = np.array([position])
        began_s = time.perf_counter()
        _, failures = rules.applied(logits_BV, [0], positions)
        if rules.open_places([0], positions):
            rules.note([0], np.array([token_id], np.int32), positions)
        costs_ms.append(1e3 * (time.perf_counter() - began_s))
        assert not failures
    for row in (0, 1):
        rules.release(row)
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
