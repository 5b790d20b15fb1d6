"""What was said so far in one branch of a conversation, and how it goes to a server: text, token ids or messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tokenizers

from bench.client import Client, Prompt
from bench.command import CannotMeasure
from bench.summary import Answer, Failure
from bench.workload import Turn


@dataclass(frozen=True, slots=True)
class Said:
    """A text of ours, or a server's answer."""

    text: str
    answer: Answer | None = None


Context = tuple[Said, ...]


class Speaker:
    """Sends contexts as token ids where it has a tokenizer, so that all servers get the very same; else as text.

    As text, a chat goes to the chat route, if the server is asked by OpenAI's routes.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer | None = None) -> None:
        self._tokenizer = tokenizer

        @cache
        def ids_of(text: str) -> tuple[int, ...]:
            assert tokenizer is not None
            return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

        self._ids_of = ids_of

    async def ask(
        self, client: Client, context: Context, turn: Turn, *, is_chat: bool, timeout_s: float
    ) -> Answer | Failure:
        """The server's answer to what was said, of which `turn` is the end."""
        max_tokens = turn.output_tokens
        if is_chat and self._tokenizer is None and not client.is_generate:
            roles = ["user" if said.answer is None else "assistant" for said in context]
            messages = [{"role": role, "content": said.text} for role, said in zip(roles, context, strict=True)]
            return await client.chat(messages, max_tokens=max_tokens, timeout_s=timeout_s)
        prompt = self.prompt(context, is_chat=is_chat)
        return await client.complete(prompt, max_tokens=max_tokens, timeout_s=timeout_s, json_schema=turn.json_schema)

    def prompt(self, context: Context, *, is_chat: bool) -> Prompt:
        """The prompt that a context is; an answer stands in it as its server gave it."""
        if self._tokenizer is None:
            return "".join(_written(said, is_chat=is_chat) for said in context)
        token_ids: list[int] = []
        for said in context:
            told = None if said.answer is None else said.answer.token_ids
            token_ids += self._ids_of(_written(said, is_chat=is_chat)) if told is None else told
        return tuple(token_ids)

    def known_after(self, prompt: Prompt, answer: Answer) -> str:
        """What the server has computed once it has answered, in the form of `comparable`: all but the last token."""
        if isinstance(prompt, str):
            return prompt + "".join(answer.pieces[:-1])
        token_ids = answer.token_ids if answer.token_ids is not None else self._ids_of(answer.text)
        return comparable((*prompt, *token_ids[:-1]))


def comparable(prompt: Prompt) -> str:
    """A string for each prompt whose characters stand for the prompt's characters, or for its tokens."""
    return prompt if isinstance(prompt, str) else "".join(map(chr, prompt))


def load_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer in a `tokenizer.json`, or in a folder that has one.

    Raises:
        CannotMeasure: there is none.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise CannotMeasure(f"--tokenizer {file} is no tokenizer.json that can be read: {error}") from error


def _written(said: Said, *, is_chat: bool) -> str:
    return f"\n{said.text}\n" if is_chat and said.answer is None else said.text
