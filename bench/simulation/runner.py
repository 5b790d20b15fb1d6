"""A runner that computes nothing: it knows how long each row is, what a step costs and which token comes next.

A plan is taken when it is made (`take`) and retired when its virtual time is over (`retire`), in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.simulation.price import Price
from bench.simulation.workload import TOKEN_BYTES, Turn
from wire.messages.encoding import bytes_to_ids, ids_to_bytes
from wire.messages.from_runner import StepResult
from wire.messages.to_runner import StepPlan


@dataclass(slots=True, eq=False)
class Row:
    """A request's stay in a row; `num_tokens` have KV by steps that have retired, and as many as that are recorded."""

    request_id: str
    turn: Turn
    head: bytes
    output: list[int]
    prompt_tokens: int
    num_tokens: int
    recorded_tokens: int = 0


@dataclass(slots=True, eq=False)
class Work:
    """A plan with its rows resolved: (row, new tokens, is sampled), and what it will cost."""

    step: int
    rows: list[tuple[Row, int, bool]]
    prefill_tokens: int
    decode_rows: int
    is_only_decode: bool


@dataclass(slots=True)
class FakeRunner:
    """The rows as of the last plan taken; `turns` holds every open request's."""

    price: Price
    turns: Mapping[str, Turn]
    rows: dict[int, Row] = field(default_factory=dict)

    def take(self, plan: StepPlan) -> Work:
        """Release, admit and resolve; the plan's own work comes with `retire`."""
        rows = self.rows
        for row in plan.released:
            del rows[row]
        for admission in plan.admissions:
            turn = self.turns[admission.request_id]
            rows[admission.row] = Row(
                request_id=admission.request_id,
                turn=turn,
                head=turn.head,
                output=turn.output.tolist(),
                prompt_tokens=turn.prompt_tokens,
                num_tokens=admission.num_cached_tokens,
            )
        resolved = [(rows[row], 1, True) for row in bytes_to_ids(plan.decodes)]
        decode_rows, prefill_tokens = len(resolved), 0
        for chunk in plan.chunks:
            num_tokens = len(chunk.token_ids) // TOKEN_BYTES
            prefill_tokens += num_tokens
            resolved.append((rows[chunk.row], num_tokens, chunk.is_sampled))
        is_only_decode = not prefill_tokens and not plan.admissions and not plan.released and not plan.copies
        return Work(plan.step, resolved, prefill_tokens, decode_rows, is_only_decode)

    def seconds(self, work: Work) -> float:
        """What `work` costs; to be asked when it starts, since it depends on how long its rows are by then."""
        context_tokens = sum(row.num_tokens + new for row, new, _ in work.rows)
        return self.price.seconds(
            prefill_tokens=work.prefill_tokens, context_tokens=context_tokens, decode_rows=work.decode_rows
        )

    def retire(self, work: Work, elapsed_s: float) -> StepResult:
        """The rows grow, and those sampled give the next token of their turn's output."""
        sampled: list[int] = []
        for row, new, is_sampled in work.rows:
            row.num_tokens += new
            if is_sampled:
                sampled.append(row.output[row.num_tokens - row.prompt_tokens])
        return StepResult(
            step=work.step,
            token_ids=ids_to_bytes(sampled),
            elapsed_s=elapsed_s,
        )
