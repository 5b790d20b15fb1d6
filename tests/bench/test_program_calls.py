from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.program_calls import optimum_tokens

token_ids = st.lists(st.integers(0, 2), min_size=1, max_size=7)
calls = st.tuples(token_ids, st.lists(st.integers(0, 2), min_size=1, max_size=4))


def _naive(prompts: list[list[int]], answers: list[list[int]]) -> int:
    """Every beginning that is part of a prompt is computed by it, unless an answer's token ends it."""
    decoded = {
        tuple((prompt + answer)[:i])
        for prompt, answer in zip(prompts, answers, strict=True)
        for i in range(len(prompt) + 1, len(prompt) + len(answer))
    }
    known = set(decoded)
    total = 0
    for ids in sorted(prompts):
        needed = {tuple(ids[:i]) for i in range(1, len(ids) + 1)}
        total += max(1, len(needed - known))
        known |= needed
    return total


@given(st.lists(calls, max_size=12))
def test_at_best_each_distinct_beginning_is_computed_once_and_each_prompts_last_token_always(
    made: list[tuple[list[int], list[int]]],
) -> None:
    prompts, answers = [prompt for prompt, _ in made], [answer for _, answer in made]
    assert optimum_tokens(prompts, [prompt + answer for prompt, answer in made]) == _naive(prompts, answers)


def test_tokens_above_a_byte_keep_their_order_and_their_borders() -> None:
    prompts = [[256, 1], [256, 2], [257]]
    assert optimum_tokens(prompts, [[*prompt, 0] for prompt in prompts]) == 4


def test_an_answers_own_prompt_is_not_computed_for_nothing() -> None:
    assert optimum_tokens([[1, 2, 3]], [[1, 2, 3, 4, 5]]) == 3


def test_an_answer_that_changes_the_cut_of_its_prompt_counts_for_nothing() -> None:
    assert optimum_tokens([[1, 2], [1, 9, 4]], [[1, 9, 4, 0], [1, 9, 4, 0]]) == 4
