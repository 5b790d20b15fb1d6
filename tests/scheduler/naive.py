"""A scheduler and a tree that are obviously right: lists and tuples, everything computed anew each time, no memory
limit, one request after the other. What the real ones are compared to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Tokens = tuple[int, ...]


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """Count the equal tokens at the start."""
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    return count


def whole_pages(num_tokens: int, page_tokens: int) -> int:
    """Tokens in whole pages."""
    return num_tokens // page_tokens * page_tokens


@dataclass
class NaiveTree:
    """Every sequence that was ever computed, by namespace."""

    sequences: list[tuple[str, Tokens]] = field(default_factory=list)

    def add(self, salt: str, tokens: Iterable[int]) -> None:
        """Remember a sequence."""
        self.sequences.append((salt, tuple(tokens)))

    def hit(self, salt: str, prompt: Tokens) -> int:
        """Tokens of `prompt` that need not be computed: those of the longest known beginning, but for its last one."""
        found = [common(known, prompt) for owner, known in self.sequences if owner == salt]
        return min(max(found, default=0), len(prompt) - 1)


@dataclass(frozen=True)
class Asked:
    """A request."""

    name: str
    prompt: Tokens
    max_new_tokens: int
    salt: str = ""


def next_token(context: Sequence[int], *, vocabulary: int) -> int:
    """The token after `context`, as the fake runner has it."""
    return (sum((i + 1) * token for i, token in enumerate(context)) + len(context)) % vocabulary


def answer(asked: Asked, *, vocabulary: int) -> list[int]:
    """The whole output of a request."""
    context = list(asked.prompt)
    for _ in range(asked.max_new_tokens):
        context.append(next_token(context, vocabulary=vocabulary))
    return context[len(asked.prompt) :]


@dataclass
class NaiveScheduler:
    """Runs requests to their ends, one by one in the order given."""

    vocabulary: int
    tree: NaiveTree = field(default_factory=NaiveTree)
    hits: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)

    def run(self, asked: Asked) -> None:
        """Compute one request; the last token of an output is never computed."""
        self.hits[asked.name] = self.tree.hit(asked.salt, asked.prompt)
        self.outputs[asked.name] = answer(asked, vocabulary=self.vocabulary)
        self.tree.add(asked.salt, [*asked.prompt, *self.outputs[asked.name]][: self.known_tokens(asked)])

    @staticmethod
    def known_tokens(asked: Asked) -> int:
        """How many tokens of a request have been computed when it has ended."""
        return len(asked.prompt) + max(asked.max_new_tokens - 1, 0)


def first_choices(waiting: Sequence[Asked], tree: NaiveTree, *, page_tokens: int) -> set[str]:
    """Of several waiting requests, those with most whole cached pages."""
    pages = {asked.name: tree.hit(asked.salt, asked.prompt) // page_tokens for asked in waiting}
    return {name for name, count in pages.items() if count == max(pages.values())}
