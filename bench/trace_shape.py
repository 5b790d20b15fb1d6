"""W12: requests as they were recorded at a service, rebuilt from a trace of Mooncake's form. Knows no server.

A line is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [block, …]}: equal blocks of
512 tokens have equal numbers, so equal numbers get equal text here.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.command import CannotMeasure
from bench.words import Draw, words
from bench.workload import Conversation, Turn, Workload

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One line of a trace."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path, num_requests: int | None) -> list[Recorded]:
    """The requests in a trace, or the first `num_requests` of them.

    Raises:
        CannotMeasure: it can't be read, or a line has another form.
    """
    decode = msgspec.json.Decoder(Recorded).decode
    try:
        with path.open("rb") as lines:
            return [decode(line) for line in itertools.islice(lines, num_requests)]
    except OSError as error:
        raise CannotMeasure(f"--trace {path} can't be read: {error.strerror}") from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CannotMeasure(
            f"--trace {path} must have timestamp, input_length, output_length and hash_ids on each line: {error}"
        ) from error


def recorded(draw: Draw, *, trace: tuple[Recorded, ...], trace_speed: float = 1.0) -> Workload:
    """The requests of a trace, each at its recorded time divided by `trace_speed`."""
    seed = draw.random.getrandbits(64)
    block_words = draw.tokens(BLOCK_TOKENS)
    first_ms = trace[0].timestamp

    def prompt(request: Recorded) -> Iterator[str]:
        left = draw.tokens(request.input_length)
        for block in request.hash_ids:
            if left > 0:
                text = words(random.Random(seed ^ block), block_words)
                yield text if left >= block_words else " ".join(text.split()[:left])
                left -= block_words

    return Workload(
        name="w12",
        conversations=tuple(
            Conversation(
                turns=(Turn(text=" ".join(prompt(request)), output_tokens=draw.tokens(request.output_length)),),
                starts_s=(request.timestamp - first_ms) / 1000 / trace_speed,
            )
            for request in trace
        ),
    )
