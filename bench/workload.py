"""What a load consists of: conversations whose requests build on each other's answers. Knows no words and no server.

A conversation is a tree. Its `turns` begin together, each with the prefix and a text of its own; the turns under a turn
begin together once it is answered, each with all that was said up to there. A `final` turn waits for all its siblings
and is sent with what every one of them said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request, sent `wait_s` after what it builds on was answered, and those that build on its answer.

    With `json_schema` the answer ends when its JSON does, and `output_tokens` is only the limit.
    """

    text: str
    output_tokens: int
    json_schema: str | None = None
    wait_s: float = 0.0
    then: tuple[Turn, ...] = ()
    final: Turn | None = None

    @property
    def num_requests(self) -> int:
        """Itself and everything under it."""
        return 1 + _num_requests(self.then, self.final)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Requests that begin with `prefix`; those with one `label` get latencies of their own.

    `starts_s` is when a recorded one began, counted from the first.
    """

    prefix: str = ""
    turns: tuple[Turn, ...]
    final: Turn | None = None
    label: str = ""
    starts_s: float | None = None

    @property
    def num_requests(self) -> int:
        """Requests in the whole tree."""
        return _num_requests(self.turns, self.final)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The conversations of one run, in the order in which they start, after those of the `warmup` have ended.

    Servers with a chat route get a chat's turns as messages.
    """

    name: str
    conversations: tuple[Conversation, ...]
    warmup: tuple[Conversation, ...] = ()
    is_chat: bool = False

    @property
    def num_requests(self) -> int:
        """Requests in all conversations together, without the warm-up."""
        return sum(conversation.num_requests for conversation in self.conversations)


def chain(turns: Iterable[Turn]) -> Turn:
    """Turns one after the other, each waiting for the answer to the one before."""
    *before, last = turns
    for turn in reversed(before):
        last = replace(turn, then=(last,))
    return last


def limited(workload: Workload, num_requests: int) -> Workload:
    """The first `num_requests` requests of a workload; the last conversation is cut where needed."""
    kept = []
    left = num_requests
    for conversation in workload.conversations:
        if left < 1:
            break
        turns, final, left = _cut(conversation.turns, conversation.final, left)
        kept.append(replace(conversation, turns=turns, final=final))
    return replace(workload, conversations=tuple(kept))


def _cut(turns: tuple[Turn, ...], final: Turn | None, left: int) -> tuple[tuple[Turn, ...], Turn | None, int]:
    kept = []
    for turn in turns:
        if left < 1:
            break
        then, its_final, left = _cut(turn.then, turn.final, left - 1)
        kept.append(replace(turn, then=then, final=its_final))
    if final is None or left < 1:
        return tuple(kept), None, left
    then, its_final, left = _cut(final.then, final.final, left - 1)
    return tuple(kept), replace(final, then=then, final=its_final), left


def _num_requests(turns: tuple[Turn, ...], final: Turn | None) -> int:
    return sum(turn.num_requests for turn in turns) + (0 if final is None else final.num_requests)
