"""Every prompt token is a hit or has one cause."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulation.account import Outcome
from bench.simulation.price import LinearPrice
from bench.simulation.record import PrefixRecord
from bench.simulation.workload import Session, Turn, Workload, to_bytes
from bench.simulation.world import World, make_world
from scheduler.config import SchedulerConfig

PAGE_TOKENS = 4
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=12)


def asked(start_s: float, prompt: Sequence[int], *, output: Sequence[int] = (900,), salt: str = "") -> Session:
    turn = Turn(to_bytes(np.array(prompt, np.int32)), np.array(output, np.int32), salt=salt)
    return Session((turn,), start_s)


def simulated(sessions: Sequence[Session], *, pool_tokens: int = 400, **flags: int) -> World:
    config = SchedulerConfig(**flags)  # type: ignore[arg-type]
    world = make_world(Workload(sessions), config, LinearPrice(), pool_tokens=pool_tokens, page_tokens=PAGE_TOKENS)
    world.run()
    for outcome in world.account.outcomes:
        assert sum(causes(outcome)) == outcome.prompt_tokens
    return world


def causes(outcome: Outcome) -> tuple[int, ...]:
    """Hit, evicted, page rounding, in flight, another namespace's, never seen."""
    return (
        outcome.cached_tokens,
        outcome.evicted_tokens,
        outcome.rounded_tokens,
        outcome.in_flight_tokens,
        outcome.foreign_tokens,
        outcome.unseen_tokens,
    )


def test_a_new_prompt_was_never_seen_and_its_last_token_is_always_computed() -> None:
    world = simulated([asked(0, range(12)), asked(10, range(12))])
    assert [causes(each) for each in world.account.outcomes] == [(0, 0, 0, 0, 0, 12), (11, 0, 1, 0, 0, 0)]


def test_what_another_prompt_pushed_out_was_evicted() -> None:
    world = simulated([asked(0, range(12)), asked(10, range(100, 118)), asked(20, range(12))], pool_tokens=20)
    assert world.account.outcomes[2].evicted_tokens == 11 - world.account.outcomes[2].cached_tokens > 0


def test_another_namespaces_tokens_are_no_hit() -> None:
    world = simulated([asked(0, range(12), salt="a"), asked(10, [*range(10), 50, 51], salt="b")])
    assert causes(world.account.outcomes[1]) == (0, 0, 0, 0, 10, 2)


def test_tokens_that_a_running_request_computes_are_in_flight() -> None:
    less_than_a_page = [0, 1]
    world = simulated([asked(0, range(40)), asked(0.001, [*less_than_a_page, 50, 51])])
    assert causes(world.account.outcomes[1]) == (0, 0, 0, 2, 0, 2)


def test_an_answer_can_be_reused_but_for_its_last_token() -> None:
    first = asked(0, range(6), output=range(100, 110))
    second = asked(10, [*range(6), *range(100, 110), 7])
    world = simulated([first, second])
    assert world.account.outcomes[1].shareable_tokens == 15
    assert causes(world.account.outcomes[1]) == (15, 0, 0, 0, 0, 2)


@given(SEQUENCES, st.lists(st.integers(0, 2), max_size=12))
def test_the_record_finds_the_longest_beginning_ever_added(sequences: list[list[int]], query: list[int]) -> None:
    record = PrefixRecord()
    for number, sequence in enumerate(sequences):
        assert record.add(_bytes(sequence)) == _longest(sequences[:number], sequence)
    assert record.longest(_bytes(query)) == _longest(sequences, query)


@pytest.mark.parametrize("token", [0, 1])
def test_a_dropped_beginning_is_forgotten(token: int) -> None:
    record = PrefixRecord()
    record.add(_bytes([0, 1]))
    record.drop(_bytes([token]))
    assert record.longest(_bytes([0, 1])) == (2 if token else 0)


def _bytes(token_ids: Sequence[int]) -> bytes:
    return to_bytes(np.array(token_ids, np.int32))


def _longest(sequences: Sequence[Sequence[int]], query: Sequence[int]) -> int:
    longest = 0
    for sequence in sequences:
        common = 0
        while common < min(len(sequence), len(query)) and sequence[common] == query[common]:
            common += 1
        longest = max(longest, common)
    return longest
