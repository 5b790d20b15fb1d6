"""The sequence that begins most like a prompt, against comparing with all."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.request import TokenIds
from scheduler.sequences import Sequences

HISTORY = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=15)


def common(one: TokenIds, other: TokenIds) -> int:
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length


@settings(max_examples=200, deadline=None)
@given(HISTORY)
def test_what_is_shared_is_found_to_the_token(history: list[tuple[int, int, int]]) -> None:
    sequences = Sequences(most_tokens=1 << 20)
    known: list[TokenIds] = []
    for number, (follows, kept, added) in enumerate(history):
        base = known[-1 - follows][:kept] if follows < len(known) else np.empty(0, np.int32)
        tokens = np.concatenate([base, np.arange(number * 1000, number * 1000 + added, dtype=np.int32)])
        found = sequences.longest(1, tokens)
        best = max((common(tokens, other) for other in known), default=0)
        assert (found[1] if found is not None else 0) == best
        if found is not None:
            assert common(tokens, known[found[0]]) == best
        sequences.add(number, 1, tokens)
        known.append(tokens)


def test_they_are_bounded_by_their_tokens_and_the_oldest_go() -> None:
    sequences = Sequences(most_tokens=100)
    first, second, third = (np.arange(start, start + 48, dtype=np.int32) for start in (0, 100, 200))
    for number, tokens in enumerate((first, second, third)):
        sequences.add(number, 1, tokens)
    assert sequences.longest(1, first) is None
    assert sequences.longest(1, second) == (1, 48)
    assert sequences.longest(1, third) == (2, 48)


def test_a_growing_conversation_counts_once() -> None:
    sequences = Sequences(most_tokens=400)
    other = np.arange(1000, 1048, dtype=np.int32)
    sequences.add(0, 1, other)
    whole = np.arange(320, dtype=np.int32)
    for number in range(1, 20):
        sequences.add(number, 1, whole[: 16 * number])
    assert sequences.longest(1, other) == (0, 48)
