"""The fuzzers' targets, each for a moment always the same; `make soak` gives them minutes, guided by coverage."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from .targets import SEEDS, TARGETS

NUM_INPUTS = 400


def mutated(seeds: Sequence[bytes], generator: random.Random) -> Iterator[bytes]:
    """Endless inputs near to `seeds`: bytes altered, parts cut out, doubled, or put into one another."""
    while True:
        data = bytearray(generator.choice(seeds))
        for _ in range(generator.randint(0, 4)):
            start = generator.randrange(len(data) + 1)
            end = min(len(data), start + generator.randint(1, 8))
            other = generator.choice(seeds)
            at = generator.randrange(len(other) + 1)
            match generator.randrange(5):
                case 0:
                    data[start:end] = generator.randbytes(end - start)
                case 1:
                    del data[start:end]
                case 2:
                    data[start:start] = data[start:end] * generator.randint(1, 3)
                case 3:
                    data[start:end] = other[at : at + generator.randint(1, 24)]
                case 4:
                    data[start:start] = generator.choice((b'"', b"\\", b"{", b"}", b"[", b"\n", b"\xf0\x9f", b"<"))
        yield bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_near_to_good_ones_are_read_or_refused(name: str) -> None:
    inputs = mutated(SEEDS[name], random.Random(name))
    for seed in SEEDS[name]:
        TARGETS[name](seed)
    for _ in range(NUM_INPUTS):
        data = next(inputs)
        try:
            TARGETS[name](data)
        except Exception as error:
            raise AssertionError(f"{name} failed on {data!r}") from error
