from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime.engine_wishes import Chat, chat_wishes_of, in_own_words, one_chat_wish, one_wish, typed, wishes_of
from wire.errors import PromptTooLong, Refused
from wire.sampling import SamplingParams

HI = {"role": "user", "content": "hi"}


def test_one_prompt_and_many_are_told_apart() -> None:
    for prompts in ("text", [1, 2], (1, 2), [np.int64(1), np.int64(2)], [2**40]):
        assert len(wishes_of(prompts, None, n=None, options={})) == 1
    for prompts in (["a", "b"], [[1], [2]], [(1,), "b"]):
        assert len(wishes_of(prompts, None, n=None, options={})) == 2
    assert wishes_of([], None, n=None, options={}) == []
    assert [wish.prompt for wish in wishes_of([np.int64(7), 8], None, n=None, options={})] == [[7, 8]]
    assert [wish.prompt for wish in chat_wishes_of([HI], None, n=None, options={})] == [Chat(messages=[HI])]
    assert len(chat_wishes_of([[HI], [HI]], None, n=None, options={})) == 2


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([1, "x"], "something else than token ids"),
        ([1.5], "something else"),
        ([True, False], "something else"),
        ([1, None], "something else"),
        (np.array([1, 2]), "got ndarray"),
        (None, "got NoneType"),
        (b"abc", "got bytes"),
        ("a\ud800", "is no text"),
        ({"text": "x"}, "got dict"),
    ],
)
def test_what_is_no_prompt_is_named(prompt: Any, words: str) -> None:  # noqa: ANN401
    with pytest.raises(Refused, match=words) as caught:
        one_wish(prompt, None, n=None, options={})
    assert caught.value.field == "prompt"
    with pytest.raises(Refused, match=words) as caught:
        wishes_of(["good", prompt], None, n=None, options={})
    assert caught.value.__notes__ == ["in the prompt with index 1"]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ("hi", "messages"),
        (None, "messages"),
        (HI, "messages"),
        (["hi"], "messages[0]"),
        ([HI, 5], "messages[1]"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], "messages[0].content"),
        ([HI, {"role": "user", "content": "\udfff"}], "messages[1].content"),
    ],
)
def test_what_is_no_chat_is_named(messages: Any, field: str) -> None:  # noqa: ANN401
    with pytest.raises(Refused) as caught:
        one_chat_wish(messages, None, n=None, options={})
    assert caught.value.field == field
    assert field in caught.value.message


@pytest.mark.parametrize(("name", "value"), [("stop", ("\ud800",)), ("stop_regex", "\ud800"), ("stop", (b"x",))])
def test_what_no_message_can_carry_is_refused_before_it_is_sent(name: str, value: Any) -> None:  # noqa: ANN401
    with pytest.raises(Refused) as caught:
        typed(SamplingParams(**{name: value}))
    assert caught.value.field == name
    with pytest.raises(Refused, match="salt is no text"):
        one_wish("x", None, n=None, options={"salt": "\ud800"})


def test_each_prompt_may_have_its_own_sampling() -> None:
    own = [SamplingParams(seed=1), SamplingParams(seed=2)]
    assert [wish.sampling.seed for wish in wishes_of(["a", "b"], own, n=None, options={})] == [1, 2]
    with pytest.raises(ValueError, match="sampling has 2 entries and there are 1 prompts"):
        wishes_of(["a"], own, n=None, options={})


def test_an_error_keeps_its_kind_when_its_field_is_renamed() -> None:
    renamed = in_own_words(Refused("logprobs must be in [0, 20]. Change logprobs.", field="logprobs"))
    assert renamed.message == "num_top_logprobs must be in [0, 20]. Change num_top_logprobs."
    other = PromptTooLong("too long", field="prompt")
    assert in_own_words(other) is other


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("priority", 1001, "[-1000, 1000]"),
        ("priority", 1.0, "a whole number"),
        ("cache_priority", -1, "[0, 10]"),
        ("cache_priority", True, "a whole number"),
        ("cache_ttl_s", float("nan"), "[0, 86400]"),
        ("cache_ttl_s", "1", "a number"),
    ],
)
def test_a_wish_for_priority_out_of_range_is_refused_with_name_limit_and_value(
    name: str, value: object, limit: str
) -> None:
    options: Any = {name: value}
    with pytest.raises(Refused) as refused:
        one_wish("x", None, n=None, options=options)
    assert refused.value.field == name
    assert limit in refused.value.message and repr(value) in refused.value.message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prioritty": 1}, r"'prioritty'; did you mean priority"),
        ({"temperature": 0}, r"axil\.SamplingParams\(temperature=…\)"),
        ({"zzz": 0}, "there are salt, priority"),
    ],
)
def test_an_option_that_there_is_not_is_told_which_was_meant(options: Any, words: str) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match=words):
        one_wish("x", None, n=None, options=options)


def test_a_grammar_that_is_none_is_told_where_one_comes_from() -> None:
    wrong: Any = {"type": "object"}
    with pytest.raises(Refused, match=r"axil\.json_schema"):
        typed(SamplingParams(grammar=wrong))
