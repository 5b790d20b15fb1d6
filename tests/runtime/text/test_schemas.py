"""Answers forced by JSON schemas of every keyword: what comes out suits the schema, or the schema is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from runtime.text.grammar import GrammarTrial, json_grammar
from runtime.text.tokenizer import Tokenizer
from tests.fakes import EOS, VOCABULARY, byte_tokenizer, write_model_dir
from tests.runtime.text.schemas import Schema, all_schemas
from wire.errors import Refused

SCHEMAS = all_schemas()
NUM_ANSWERS = 3
MAX_TOKENS = 3000
CLOSING = frozenset(b'"]}')


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("model")
    write_model_dir(directory)
    return Tokenizer.load(directory)


def _written(matcher: LLMatcher, generator: random.Random) -> str:
    """A random answer that the grammar lets through, hurrying to its end."""
    data = bytearray()
    for _ in range(MAX_TOKENS):
        mask = matcher.compute_bitmask()
        allowed = [token for token in range(VOCABULARY) if mask[token // 8] >> (token % 8) & 1]
        assert allowed, bytes(data)
        closing = [token for token in allowed if token in CLOSING or token == EOS]
        plain = [token for token in allowed if 32 <= token < 127] or allowed
        token = generator.choice(closing) if closing and generator.random() < 0.6 else generator.choice(plain)
        if EOS in allowed and generator.random() < 0.5:
            token = EOS
        if token >= 256:
            return data.decode()
        assert matcher.consume_token(token)
        data.append(token)
        if matcher.is_stopped():
            return data.decode()
    raise AssertionError(f"no end after {MAX_TOKENS} tokens: {bytes(data[:200])!r}")


def test_there_are_enough_of_them() -> None:
    assert len({json.dumps(schema) for schema in SCHEMAS}) >= 200


async def test_an_answer_suits_its_schema_or_the_schema_is_refused(tokenizer: Tokenizer) -> None:
    trial = GrammarTrial(tokenizer)
    # Its check of `time` knows no time zones, which the standard's times must have.
    checker = jsonschema.FormatChecker(set(jsonschema.FormatChecker.checkers) - {"time"})
    vocabulary = LLTokenizer(byte_tokenizer().to_str(), eos_token=[EOS])
    refused: list[Schema] = []
    wrong: list[tuple[Schema, str, str]] = []
    for i, schema in enumerate(SCHEMAS):
        try:
            grammar = await trial.tried(json_grammar(schema, field="json_schema"))
        except Refused as error:
            assert error.field == "json_schema"
            assert len(error.message) > 30
            refused.append(schema)
            continue
        validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
        for seed in range(NUM_ANSWERS):
            text = _written(LLMatcher(vocabulary, grammar.source, log_level=0), random.Random(f"{i} {seed}"))
            wrong += [(schema, text, error.message) for error in validator.iter_errors(json.loads(text))]
    assert not wrong, "\n".join(map(str, wrong))
    print(f"{len(refused)} of {len(SCHEMAS)} schemas are refused:", *map(json.dumps, refused), sep="\n")
    assert len(refused) < len(SCHEMAS) / 4
