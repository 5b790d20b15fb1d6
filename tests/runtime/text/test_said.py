from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from runtime.text.said import Said, encode_with, find_said
from runtime.text.template import ChatTemplate
from runtime.text.tokenizer import Tokenizer
from tests.fakes import CHAT_TEMPLATE, END_OF_TURN, EOS, text_ids, write_model_dir
from wire.errors import Refused

BROKEN = [0xFF, *text_ids("a"), 0xE6, 0xBC]
"""What no text is tokenised to: "\\ufffda\\ufffd"."""

Messages = list[dict[str, object]]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.load(write_model_dir(tmp_path))


def chat(content: str, token_ids: object) -> Messages:
    return [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": content, "token_ids": token_ids},
        {"role": "user", "content": "and?"},
    ]


def found(tokenizer: Tokenizer, messages: Messages, template: str = CHAT_TEMPLATE) -> tuple[str, list[Said]]:
    compiled = ChatTemplate(template, tokenizer.special_tokens)

    def render(some: Sequence[Mapping[str, object]], is_asking: bool) -> str:
        return compiled.render([dict(each) for each in some], add_generation_prompt=is_asking, variables={})

    text = render(messages, True)
    return text, find_said(text, messages, tokenizer, render)


@pytest.mark.parametrize("end", [[], [EOS], [END_OF_TURN]])
def test_an_answer_has_the_ids_that_the_model_gave_and_all_else_those_of_its_text(
    tokenizer: Tokenizer, end: list[int]
) -> None:
    content = bytes(BROKEN).decode(errors="replace")
    text, said = found(tokenizer, chat(content, [*BROKEN, *end]))
    start = text.index(content)
    assert said == [Said(start, start + len(content), tuple(BROKEN))]
    token_ids = encode_with(text, said, tokenizer)
    before = tokenizer.encode(text[:start], add_special_tokens=False)
    after = tokenizer.encode(text[start + len(content) :], add_special_tokens=False)
    assert token_ids == [*before, *BROKEN, *after]
    assert after[0] == END_OF_TURN
    assert token_ids != tokenizer.encode(text, add_special_tokens=False)


def test_ids_that_are_those_of_the_text_change_nothing(tokenizer: Tokenizer) -> None:
    text, said = found(tokenizer, chat("sure", text_ids("sure")))
    assert len(said) == 1
    assert encode_with(text, said, tokenizer) == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("content", "token_ids"),
    [
        ("sure", text_ids("sore")),
        ("sure", text_ids("sure!")),
        ("sure", []),
        ("sure", [EOS]),
        ("su", [*text_ids("su"), EOS, EOS]),
        ("", []),
    ],
)
def test_ids_that_do_not_give_the_text_are_left_out(tokenizer: Tokenizer, content: str, token_ids: list[int]) -> None:
    assert found(tokenizer, chat(content, token_ids))[1] == []


@pytest.mark.parametrize(
    "template",
    [
        CHAT_TEMPLATE.replace("message['content']", "message['content'] | trim | upper"),
        CHAT_TEMPLATE.replace("<|end|>", ". "),
        CHAT_TEMPLATE.replace("<assistant>", "<assistant><think>"),
        "{{ messages | length }}" + CHAT_TEMPLATE,
        "{% if messages | length == 1 %}{{ raise_exception('one is too few') }}{% endif %}" + CHAT_TEMPLATE,
    ],
)
def test_where_the_template_changes_the_answer_or_its_surroundings_its_text_counts(
    tokenizer: Tokenizer, template: str
) -> None:
    assert found(tokenizer, chat("sure", text_ids("sure")), template)[1] == []


def test_a_template_that_takes_no_chat_still_says_so(tokenizer: Tokenizer) -> None:
    with pytest.raises(Refused):
        found(tokenizer, chat("sure", text_ids("sure")), "{{ raise_exception('never') }}")
