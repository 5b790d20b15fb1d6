from __future__ import annotations

import dataclasses

import pytest

from bench.shapes import SHAPES, SIZES, limited


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_shape_is_the_same_for_the_same_seed_and_another_for_another(shape: str) -> None:
    make = SHAPES[shape]
    first = make(SIZES[shape], scale=1 / 8, seed=1)
    assert make(SIZES[shape], scale=1 / 8, seed=1) == first
    assert make(SIZES[shape], scale=1 / 8, seed=2) != first


@pytest.mark.parametrize(("shape", "groups", "per_group"), [("w1", 10, 16), ("w9", 16, 8)])
def test_requests_of_a_group_share_exactly_their_prefix_and_groups_share_nothing(
    shape: str, groups: int, per_group: int
) -> None:
    workload = SHAPES[shape](SIZES[shape], scale=1 / 8, seed=3)
    prefixes = {(conversation.group, conversation.prefix) for conversation in workload.conversations}
    assert len(prefixes) == groups == len({prefix for _, prefix in prefixes})
    assert len({prefix[:20] for _, prefix in prefixes}) == groups
    assert workload.num_requests == groups * per_group
    for group, _ in prefixes:
        questions = [c.questions for c in workload.conversations if c.group == group]
        assert len(questions) == len(set(questions)) == per_group


def test_the_groups_of_a_shared_prefix_workload_are_interleaved() -> None:
    order = [c.group for c in SHAPES["w9"](SIZES["w9"], scale=1 / 8, seed=3).conversations]
    assert order != sorted(order)


def test_lengths_follow_the_scale() -> None:
    full = SHAPES["w9"](SIZES["w9"], scale=1, seed=0).conversations[0]
    eighth = SHAPES["w9"](SIZES["w9"], scale=1 / 8, seed=0).conversations[0]
    assert [len(full.prefix.split()), len(full.questions[0].split()), full.output_tokens] == [2048, 128, (256,)]
    assert [len(eighth.prefix.split()), len(eighth.questions[0].split()), eighth.output_tokens] == [256, 16, (32,)]


@pytest.mark.parametrize(("answers", "low", "high"), [("short", 4, 8), ("long", 256, 512)])
def test_a_chat_has_four_turns_of_random_lengths_and_starts_with_words_of_its_own(
    answers: str, low: int, high: int
) -> None:
    workload = SHAPES["w6"](dataclasses.replace(SIZES["w6"], answers=answers), scale=1, seed=0)
    assert workload.is_chat
    assert len({c.questions[0][:20] for c in workload.conversations}) == len(workload.conversations) == 20
    assert all(len(c.questions) == 4 and not c.prefix for c in workload.conversations)
    assert all(256 <= len(q.split()) <= 512 for c in workload.conversations for q in c.questions)
    assert all(low <= tokens <= high for c in workload.conversations for tokens in c.output_tokens)


def test_a_limited_workload_has_exactly_so_many_requests() -> None:
    chats = SHAPES["w6"](SIZES["w6"], scale=1 / 8, seed=0)
    assert limited(chats, 6).num_requests == 6
    assert [len(c.questions) for c in limited(chats, 6).conversations] == [4, 2]
    assert limited(chats, 1000) == chats
