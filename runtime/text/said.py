"""Chats whose earlier answers keep the token ids that the model gave, instead of those that their text would get.

A sampled answer is often not split into tokens as the tokenizer would split it, so that a chat's next turn, tokenised
from its text, shares no prefix with what was computed. Ids are only put where that changes no text: behind exactly
the prompt that the answer continued, and before a special token, where texts are cut anyway. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wire.errors import Refused

from .tokenizer import Tokenizer

Render = Callable[[Sequence[Mapping[str, object]], bool], str]
"""Messages, and whether the text shall ask for the next answer, to the chat's text."""


@dataclass(frozen=True, slots=True)
class Said:
    """The characters [start, end) of a chat's text have these ids."""

    start: int
    end: int
    token_ids: tuple[int, ...]


def find_said(text: str, messages: Sequence[Mapping[str, object]], tokenizer: Tokenizer, render: Render) -> list[Said]:
    """Where the `token_ids` of earlier answers can stand for their text in `text`, which is all of `messages`."""
    found = []
    hidden_ids = tokenizer.special_ids.union(tokenizer.eos_token_ids)
    for i, message in enumerate(messages):
        content, token_ids = message["content"], message.get("token_ids")
        if not isinstance(token_ids, Sequence) or not isinstance(content, str) or not content:
            continue
        # The token that ended the answer is no part of its content; the template writes its own.
        ids = tuple(token_ids[:-1] if token_ids and token_ids[-1] in hidden_ids else token_ids)
        try:
            before = render(messages[:i], True)
        except Refused:
            continue
        end = len(before) + len(content)
        if (
            text.startswith(before)
            and text.startswith(content, len(before))
            and tokenizer.is_cut(text, end)
            and hidden_ids.isdisjoint(ids)
            and tokenizer.decode(ids, skip_special_tokens=False) == content
        ):
            found.append(Said(len(before), end, ids))
    return found


def encode_with(text: str, said: Sequence[Said], tokenizer: Tokenizer) -> list[int]:
    """Token ids of a rendered chat with the ids of `said` in their places."""
    token_ids: list[int] = []
    at = 0
    for each in said:
        token_ids += tokenizer.encode(text[at : each.start], add_special_tokens=False)
        token_ids += each.token_ids
        at = each.end
    return token_ids + tokenizer.encode(text[at:], add_special_tokens=False)
