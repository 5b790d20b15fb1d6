from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.reuse import Exchange, common_length, shareable_shares


def _naive(left: str, right: str) -> int:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


@given(st.text("ab\ud800", max_size=40), st.text("ab\ud800", max_size=40), st.text("ab", max_size=40))
def test_the_common_beginning_is_counted_to_the_first_difference(prefix: str, left: str, right: str) -> None:
    assert common_length(prefix + left, prefix + right) == _naive(prefix + left, prefix + right)


@given(st.lists(st.text("ab", min_size=1, max_size=8), max_size=20))
def test_a_prompt_shares_the_longest_beginning_of_any_before_it(prompts: list[str]) -> None:
    exchanges = [Exchange(prompt=prompt, sent_s=i, known=None, ended_s=0) for i, prompt in enumerate(prompts)]
    for i, share in enumerate(shareable_shares(exchanges)):
        longest = max((_naive(prompts[i], before) for before in prompts[:i]), default=0)
        assert share == longest / len(prompts[i])


def test_a_prompt_counts_from_its_sending_and_an_answer_from_its_end() -> None:
    first = Exchange(prompt="aa", sent_s=0.0, known="aabb", ended_s=5.0)
    during = Exchange(prompt="aabb", sent_s=1.0, known=None, ended_s=2.0)
    other = Exchange(prompt="aabbcccc", sent_s=6.0, known=None, ended_s=7.0)
    assert shareable_shares([first, during]) == [0.0, 0.5]
    assert shareable_shares([other, first]) == [0.5, 0.0]
