"""W12: requests as they were recorded at a service, rebuilt from a trace of Mooncake's form. Knows no server.

What stands on a line is in `wire.recording`: equal blocks of 512 tokens have equal numbers, so equal numbers get equal
text here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from bench.command import CannotMeasure
from bench.words import Draw, words
from bench.workload import Conversation, Turn, Workload
from wire.recording import BLOCK_TOKENS, RecordedRequest, read_recording


def read_trace(path: Path, num_requests: int | None) -> list[RecordedRequest]:
    """The requests in a trace, or the first `num_requests` of them, as they arrived.

    Raises:
        CannotMeasure: it can't be read, or a line has another form.
    """
    try:
        return sorted(read_recording(path, num_requests), key=lambda row: row.timestamp)
    except ValueError as error:
        raise CannotMeasure(f"--trace: {error}") from error


def recorded(draw: Draw, *, trace: tuple[RecordedRequest, ...], trace_speed: float = 1.0) -> Workload:
    """The requests of a trace, each at its recorded time divided by `trace_speed`."""
    seed = draw.random.getrandbits(64)
    block_words = draw.tokens(BLOCK_TOKENS)
    first_ms = trace[0].timestamp

    def prompt(request: RecordedRequest) -> Iterator[str]:
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
