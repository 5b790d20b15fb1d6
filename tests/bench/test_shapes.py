from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.command import CannotMeasure
from bench.questions import read_questions
from bench.shapes import SHAPES, make_workload
from bench.trace_shape import read_trace
from bench.workload import Conversation, Turn, Workload
from wire.recording import RecordedRequest

TRACE = (
    RecordedRequest(timestamp=1000, input_length=1100, output_length=80, hash_ids=(1, 2, 3)),
    RecordedRequest(timestamp=3000, input_length=1400, output_length=8, hash_ids=(1, 2, 4)),
)
NEEDED: dict[str, dict[str, object]] = {"w12": {"trace": TRACE}}


def _made(shape: str, *, seed: int = 3, scale: float = 1 / 8, **parameters: object) -> Workload:
    return make_workload(shape, {**NEEDED.get(shape, {}), **parameters}, scale=scale, seed=seed)


def _turns(conversation: Conversation) -> Iterator[Turn]:
    def under(turns: tuple[Turn, ...], final: Turn | None) -> Iterator[Turn]:
        for turn in (*turns, *([] if final is None else [final])):
            yield turn
            yield from under(turn.then, turn.final)

    return under(conversation.turns, conversation.final)


def _num_words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_the_same_for_the_same_seed_and_another_for_another(shape: str) -> None:
    assert _made(shape, seed=1) == _made(shape, seed=1) != _made(shape, seed=2)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_has_half_the_words_and_as_many_requests_at_half_the_scale(shape: str) -> None:
    def words(workload: Workload) -> int:
        texts = [c.prefix for c in workload.conversations] + [t.text for c in workload.conversations for t in _turns(c)]
        return sum(map(_num_words, texts))

    small: dict[str, object] = {"groups": 3} if "groups" in SHAPES[shape].parameters else {}
    if shape == "w7":
        small["answers"] = "long"
    full, half = _made(shape, scale=1, **small), _made(shape, scale=1 / 2, **small)
    assert full.num_requests == half.num_requests
    assert words(half) == pytest.approx(words(full) / 2, rel=0.12)


@pytest.mark.parametrize(
    ("shape", "groups", "per_group"), [("w1", 10, 16), ("w8", 4, 16), ("w9", 16, 8), ("w11", 8, 8)]
)
def test_requests_of_a_group_share_exactly_their_prefix_and_groups_share_nothing(
    shape: str, groups: int, per_group: int
) -> None:
    workload = _made(shape)
    sizes = Counter(conversation.prefix for conversation in workload.conversations)
    assert list(sizes.values()) == [per_group] * groups
    assert len({prefix[:20] for prefix in sizes}) == groups
    questions = {conversation.turns[0].text for conversation in workload.conversations}
    assert len(questions) == groups * per_group


def test_the_order_of_groups_is_shuffled_one_by_one_or_round_robin() -> None:
    def order(name: str) -> list[int]:
        prefixes = [c.prefix for c in _made("w9", groups=3, per_group=4, order=name).conversations]
        return [sorted(set(prefixes), key=prefixes.index).index(prefix) for prefix in prefixes]

    assert order("grouped") == [0] * 4 + [1] * 4 + [2] * 4
    assert order("round-robin") == [0, 1, 2] * 4
    assert sorted(order("shuffled")) == sorted(order("grouped")) != order("shuffled")


def test_zipf_gives_the_first_groups_the_most_prompts_and_as_many_in_all() -> None:
    sizes = Counter(c.prefix for c in _made("w9", zipf=1.5).conversations).most_common()
    assert sum(size for _, size in sizes) == 16 * 8
    assert sizes[0][1] > 3 * 8


def test_lengths_follow_the_scale() -> None:
    full, eighth = (_made("w9", scale=scale).conversations[0] for scale in (1, 1 / 8))
    lengths = [(_num_words(c.prefix), _num_words(c.turns[0].text), c.turns[0].output_tokens) for c in (full, eighth)]
    assert lengths == [(2048, 128, 256), (256, 16, 32)]


@pytest.mark.parametrize(("answers", "low", "high"), [("short", 4, 8), ("long", 256, 512)])
def test_a_chat_has_four_turns_of_random_lengths_and_starts_with_words_of_its_own(
    answers: str, low: int, high: int
) -> None:
    workload = _made("w6", answers=answers, scale=1)
    assert workload.is_chat
    chats = [list(_turns(conversation)) for conversation in workload.conversations]
    assert len({turns[0].text[:20] for turns in chats}) == len(chats) == 20
    assert {len(turns) for turns in chats} == {4}
    assert all(256 <= _num_words(turn.text) <= 512 for turns in chats for turn in turns)
    assert all(low <= turn.output_tokens <= high for turns in chats for turn in turns)


def test_agents_share_their_examples_and_wait_for_tools_but_not_for_the_first() -> None:
    workload = _made("w2", groups=5, tool_wait=2.0)
    assert len({conversation.prefix for conversation in workload.conversations}) == 1
    waits = [[turn.wait_s for turn in _turns(conversation)] for conversation in workload.conversations]
    assert all(first == 0 and all(1 <= wait_s <= 3 for wait_s in others) for first, *others in waits)


@pytest.mark.parametrize("answers", ["short", "long"])
def test_records_are_asked_for_by_a_schema_and_their_length_is_not_scaled(answers: str) -> None:
    turns = [conversation.turns[0] for conversation in _made("w7", answers=answers).conversations]
    assert len({turn.text for turn in turns}) == len(turns) == 20
    (schema,) = {turn.json_schema for turn in turns}
    assert schema is not None
    assert "name" in json.loads(schema)["required"]
    assert {turn.output_tokens for turn in turns} == {256}


def test_a_tree_of_thought_has_39_requests_a_question_and_no_two_siblings_alike() -> None:
    workload = _made("w4", groups=2)
    assert workload.num_requests == 2 * 39
    turns = [turn for conversation in workload.conversations for turn in _turns(conversation)]
    assert all(len({child.text for child in turn.then}) == len(turn.then) for turn in turns)
    assert Counter(turn.text.split()[0] for turn in turns) == {"Plan": 6, "Solution": 18, "Reflection": 54}


def test_a_judge_forks_six_times_and_joins_for_a_short_verdict() -> None:
    article = _made("w5").conversations[0]
    assert len(article.turns) == 6
    assert article.final is not None
    assert article.final.output_tokens == 2


def test_five_of_a_hundred_prompts_are_cold_and_as_long_as_the_others() -> None:
    conversations = _made("w13", scale=1).conversations
    assert Counter(conversation.label for conversation in conversations) == {"hot": 190, "cold": 10}
    assert {_num_words(conversation.prefix) for conversation in conversations} == {1920}
    assert Counter(Counter(c.prefix for c in conversations).values()) == {190: 1, 1: 10}


def test_the_herds_document_follows_a_system_text_that_the_server_has_seen() -> None:
    workload = _made("w14")
    (document,) = {conversation.prefix for conversation in workload.conversations}
    (known,) = workload.warmup
    assert document.startswith(f"{known.prefix} ")
    assert workload.num_requests == 64


def test_equal_blocks_of_a_trace_have_equal_text_and_times_are_as_recorded() -> None:
    first, second = _made("w12", scale=1, trace_speed=4.0).conversations
    texts = [conversation.turns[0].text.split() for conversation in (first, second)]
    assert [len(text) for text in texts] == [1100, 1400]
    assert texts[0][:1024] == texts[1][:1024]
    assert texts[0][1024:1050] != texts[1][1024:1050]
    assert [first.starts_s, second.starts_s] == [0.0, 0.5]
    assert [first.turns[0].output_tokens, second.turns[0].output_tokens] == [80, 8]


def test_real_questions_come_after_real_examples_and_are_not_among_them(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{i}?", "answer": f"a{i}", "id": i}) + "\n" for i in range(30)))
    workload = _made("w1", groups=2, per_group=10, questions=read_questions(path))
    for conversation in workload.conversations:
        assert conversation.prefix.count("Question: q") == conversation.prefix.count("\nAnswer: a") == 5
        assert conversation.turns[0].text.split()[1] not in conversation.prefix
    with pytest.raises(CannotMeasure, match="needs 31 questions and --questions has 30"):
        _made("w4", groups=31, questions=read_questions(path))


@pytest.mark.parametrize("content", ["{", '{"question": "no answer"}', "[]"])
def test_a_file_of_another_form_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(content)
    with pytest.raises(CannotMeasure, match="--questions"):
        read_questions(path)
    with pytest.raises(CannotMeasure, match="--trace"):
        read_trace(path, None)
    with pytest.raises(CannotMeasure, match="can't be read: No such file"):
        read_trace(tmp_path / "missing", None)


def test_a_trace_is_read_only_as_far_as_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = json.dumps({"timestamp": 0, "input_length": 4, "output_length": 2, "hash_ids": [7], "type": "text"})
    path.write_text(f"{line}\n{line}\nnot json")
    assert len(read_trace(path, 2)) == 2


def test_what_a_shape_lacks_or_needs_is_said_by_its_flag() -> None:
    with pytest.raises(CannotMeasure, match="--per-group means nothing for --shape w6"):
        _made("w6", per_group=2)
    with pytest.raises(CannotMeasure, match="--shape w12 needs --trace"):
        make_workload("w12", {}, scale=1, seed=1)
