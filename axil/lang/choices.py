"""Which of several continuations a model prefers, by their tokens' logprobs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


def departure(prompt: Sequence[int], whole: Sequence[Sequence[int]]) -> int:
    """Find the first token at which any of several prompts with a choice behind them departs from the prompt's own.

    >>> departure([1, 2, 3], [[1, 2, 3, 4], [1, 2, 9]])
    2
    """
    return min(sum(1 for _ in takewhile(_is_same, zip(prompt, each, strict=False))) for each in whole)


def _is_same(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]


def length_normalized(logprobs: Sequence[Sequence[float]]) -> list[float]:
    """Score each choice by the mean logprob of its tokens.

    >>> length_normalized([[-1.0, -3.0], [-1.5]])
    [-2.0, -1.5]
    """
    return [sum(each) / len(each) if each else 0.0 for each in logprobs]


def unconditional_normalized(logprobs: Sequence[Sequence[float]], alone: Sequence[Sequence[float]]) -> list[float]:
    """Score each choice by how much likelier the prompt has made it: its sum less that of its tokens `alone`.

    >>> unconditional_normalized([[-1.0], [-2.0]], [[-1.0], [-4.0]])
    [0.0, 2.0]
    """
    return [sum(given) - sum(free) for given, free in zip(logprobs, alone, strict=True)]


def greedy_choice(logprobs: Sequence[Sequence[float]]) -> int:
    """Find the choice with the likeliest first token; of those that tie, that with the likeliest second, and so on.

    A choice that has ended competes with the mean of its tokens.

    >>> greedy_choice([[-1.0, -5.0], [-1.0, -2.0], [-3.0]])
    1
    """
    left = list(range(len(logprobs)))
    means = length_normalized(logprobs)
    for i in range(max(map(len, logprobs))):
        at = {each: logprobs[each][i] if i < len(logprobs[each]) else means[each] for each in left}
        best = max(at.values())
        left = [each for each in left if at[each] == best]
        if len(left) == 1:
            break
    return left[0]
