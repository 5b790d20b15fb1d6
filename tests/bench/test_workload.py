from __future__ import annotations

from bench.workload import Conversation, Turn, Workload, chain, limited


def _turn(text: str, **under: object) -> Turn:
    return Turn(text=text, output_tokens=1, **under)  # type: ignore[arg-type]


FORK = Conversation(turns=tuple(_turn(name) for name in "abc"), final=_turn("verdict"))
TREE = Conversation(turns=(_turn("root", then=(_turn("left", then=(_turn("leaf"),)), _turn("right"))),))


def test_every_turn_of_a_tree_is_a_request() -> None:
    workload = Workload(name="w", conversations=(FORK, TREE), warmup=(FORK,))
    assert [FORK.num_requests, TREE.num_requests, workload.num_requests] == [4, 4, 8]


def test_a_chain_sends_each_turn_after_the_one_before() -> None:
    first = chain([_turn("a"), _turn("b"), _turn("c")])
    assert [first.text, first.then[0].text, first.then[0].then[0].text] == ["a", "b", "c"]
    assert first.num_requests == 3


def test_a_limited_workload_has_exactly_so_many_requests() -> None:
    workload = Workload(name="w", conversations=(FORK, TREE))
    for num_requests in range(1, 9):
        assert limited(workload, num_requests).num_requests == num_requests
    assert limited(workload, 8) == limited(workload, 1000) == workload


def test_what_is_cut_off_is_the_end_and_a_turn_never_loses_what_it_builds_on() -> None:
    cut = limited(Workload(name="w", conversations=(FORK, TREE)), 6)
    assert cut.conversations[0] == FORK
    (root,) = cut.conversations[1].turns
    assert [root.text, [turn.text for turn in root.then]] == ["root", ["left"]]
    assert limited(Workload(name="w", conversations=(FORK,)), 3).conversations[0].final is None
