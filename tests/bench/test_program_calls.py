from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.program_calls import optimum_tokens

token_ids = st.lists(st.integers(0, 2), min_size=1, max_size=7)


def _naive(prompts: list[list[int]], answered: list[list[int]]) -> int:
    known = {tuple(ids[:i]) for ids in answered for i in range(1, len(ids))}
    total = 0
    for ids in sorted(prompts):
        needed = {tuple(ids[:i]) for i in range(1, len(ids) + 1)}
        total += max(1, len(needed - known))
        known |= needed
    return total


@given(st.lists(token_ids, max_size=12), st.lists(token_ids, max_size=4))
def test_at_best_each_distinct_beginning_is_computed_once_and_each_prompts_last_token_always(
    prompts: list[list[int]], answered: list[list[int]]
) -> None:
    assert optimum_tokens(prompts, answered) == _naive(prompts, answered)


def test_tokens_above_a_byte_keep_their_order_and_their_borders() -> None:
    assert optimum_tokens([[256, 1], [256, 2], [257]], []) == 4
