"""What became of every request, and why its tokens were not found cached.

A shadow record keeps every sequence whose steps have retired, so the cause of a miss is known and not guessed. For the
tokens of a prompt, when it is first scheduled:

    [ hit | evicted | page rounding | in flight | another namespace's | never seen )

- hit: the scheduler reused them.
- evicted: they were computed before, in whole pages, which are therefore entered into the tree; they are gone.
- page rounding: they were computed before, but at the end of a sequence that did not fill their page, or it is the
  prompt's last token, which is always computed.
- in flight: a running request is computing them, and its step has not retired.
- another namespace's: only another namespace has them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from bench.simulation.record import PrefixRecord, common_bytes
from bench.simulation.runner import Row
from bench.simulation.workload import TOKEN_BYTES, Turn

HOT_SHARE = 0.5
"""A request is hot when earlier ones hold at least this share of its prompt."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One request; times are virtual seconds since the start, token counts are of its prompt."""

    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    shareable_tokens: int
    cached_tokens: int = 0
    evicted_tokens: int = 0
    rounded_tokens: int = 0
    in_flight_tokens: int = 0
    foreign_tokens: int = 0
    unseen_tokens: int = 0
    queue_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    num_retractions: int = 0

    @property
    def ttft_s(self) -> float | None:
        """From arrival to the first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def is_hot(self) -> bool:
        """Whether earlier requests hold most of the prompt."""
        return self.shareable_tokens >= HOT_SHARE * self.prompt_tokens


@dataclass(slots=True)
class Account:
    """Outcomes in the order of arrival, and the records that they are explained by."""

    page_tokens: int
    outcomes: list[Outcome] = field(default_factory=list)
    _computed: dict[str, PrefixRecord] = field(default_factory=lambda: defaultdict(PrefixRecord))
    _arrived: dict[str, PrefixRecord] = field(default_factory=lambda: defaultdict(PrefixRecord))

    def arrive(self, turn: Turn, *, now_s: float) -> Outcome:
        """Open a request's account; with unlimited memory all that came before could be reused."""
        known = self._arrived[turn.salt].add(turn.prompt)
        outcome = Outcome(
            arrived_s=now_s,
            prompt_tokens=turn.prompt_tokens,
            output_tokens=len(turn.output),
            shareable_tokens=min(known, turn.prompt_tokens - 1),
        )
        self.outcomes.append(outcome)
        return outcome

    def compute(self, row: Row) -> None:
        """Record the tokens of a row whose steps have retired."""
        if row.num_tokens > row.recorded_tokens:
            self._computed[row.turn.salt].add(_known(row))
            row.recorded_tokens = row.num_tokens

    def end(self, turn: Turn) -> None:
        """A request is answered: what it sampled is there to be reused, but for its last token."""
        if len(turn.output) > 1:
            self._arrived[turn.salt].add(turn.prompt + turn.output[:-1].tobytes())

    def forget(self, salt: str, heads: Iterable[bytes]) -> None:
        """Drop the sequences that begin with one of these tokens: nobody will ask for them again."""
        for head in heads:
            self._computed[salt].drop(head)
            self._arrived[salt].drop(head)

    def schedule(self, outcome: Outcome, turn: Turn, *, cached_tokens: int, running: Iterable[Row]) -> None:
        """Divide a prompt's tokens among the causes, at its first scheduling; `running` are the rows of that moment."""
        prompt, total = turn.prompt, turn.prompt_tokens
        head, salt = turn.head, turn.salt
        # Rows that share nothing are recorded when they end: nobody asks for them before.
        running = [row for row in running if row.head == head and row.turn.salt == salt and row.turn is not turn]
        for row in running:
            self.compute(row)
        computed = max(self._computed[turn.salt].longest(prompt), cached_tokens)
        whole = min(computed // self.page_tokens * self.page_tokens, total - 1)
        in_flight = computed
        if computed < total:
            in_flight = max((_common(row.turn, turn, beyond=computed) for row in running), default=computed)
            in_flight = max(in_flight, computed)
        foreign = in_flight
        if in_flight < total and len(self._computed) > 1:
            others = (record for salt, record in self._computed.items() if salt != turn.salt)
            foreign = max(in_flight, *(record.longest(prompt) for record in others))
        outcome.cached_tokens = cached_tokens
        outcome.evicted_tokens = max(0, whole - cached_tokens)
        outcome.rounded_tokens = computed - max(cached_tokens, whole)
        outcome.in_flight_tokens = in_flight - computed
        outcome.foreign_tokens = foreign - in_flight
        outcome.unseen_tokens = total - foreign


def _known(row: Row) -> bytes:
    prompt = row.turn.prompt[: row.num_tokens * TOKEN_BYTES]
    return prompt + row.turn.output[: max(0, row.num_tokens - row.prompt_tokens)].tobytes()


def _common(other: Turn, turn: Turn, *, beyond: int) -> int:
    """The length of the common beginning of two prompts, or 0 when it is not longer than `beyond`."""
    start, stop = beyond * TOKEN_BYTES, (beyond + 1) * TOKEN_BYTES
    if other.prompt[start:stop] != turn.prompt[start:stop]:
        return 0
    return common_bytes(other.prompt, turn.prompt, 0) // TOKEN_BYTES
