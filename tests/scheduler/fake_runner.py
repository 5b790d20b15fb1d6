"""A runner of plain lists that checks every plan, for tests of the scheduler.

It keeps, for every slot of every page, the token whose KV stands there, and reads a row's context back through its page
table. So a page that was shared, copied or given out wrongly shows up as a wrong context. The next token is a pure
function of the context: whatever was cached, chunked or batched, a request's output must be `expected_output`. A row
with penalties must know exactly the ids of its context, however often it was retracted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wire.messages import (
    BrokenRow,
    PromptLogprobs,
    StepPlan,
    StepResult,
    bytes_to_ids,
    ids_to_bytes,
    pack_logprobs,
)

VOCABULARY = 50
GARBAGE = -1


def next_token(context: list[int]) -> int:
    return (sum((i + 1) * token for i, token in enumerate(context)) + len(context)) % VOCABULARY


def expected_output(prompt: list[int], *, max_new_tokens: int, stop_token_ids: tuple[int, ...] = ()) -> list[int]:
    context = list(prompt)
    while len(context) < len(prompt) + max_new_tokens:
        context.append(next_token(context))
        if context[-1] in stop_token_ids:
            break
    return context[len(prompt) :]


@dataclass(slots=True)
class Row:
    pages: list[int]
    length: int
    last_token: int | None = None
    prompt_ids: list[int] | None = None
    output_ids: list[int] | None = None
    num_prompt_tokens: int = 0
    first_logprob: int | None = None


@dataclass(slots=True)
class FakeRunner:
    num_pages: int
    page_tokens: int
    seconds_per_token: float = 0.001
    rows: dict[int, Row] = field(default_factory=dict)
    next_step: int = 0
    broken_rows: set[int] = field(default_factory=set)
    prefilled_tokens: int = 0
    decoded_tokens: int = 0
    slots: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.slots = np.full((self.num_pages, self.page_tokens), GARBAGE, dtype=np.int32)

    def execute(self, plan: StepPlan) -> StepResult:
        assert plan.step == self.next_step, f"step {plan.step} came where {self.next_step} was due"
        self.next_step += 1
        for row in plan.released:
            del self.rows[row]
        self.slots[[copy.destination for copy in plan.copies]] = self.slots[[copy.source for copy in plan.copies]]
        for admission in plan.admissions:
            assert admission.row not in self.rows, f"row {admission.row} is taken"
            row = Row(bytes_to_ids(admission.page_ids), admission.num_cached_tokens)
            row.num_prompt_tokens = admission.num_prompt_tokens
            row.first_logprob = admission.first_logprob
            if admission.sampling.needs_prompt_ids:
                row.prompt_ids = bytes_to_ids(admission.prompt_ids)
            else:
                assert not admission.prompt_ids
            if admission.sampling.needs_output_ids:
                row.output_ids = bytes_to_ids(admission.output_ids)
            else:
                assert not admission.output_ids
            self.rows[admission.row] = row
        sampled: list[int] = []
        broken: list[BrokenRow] = []
        scored: list[PromptLogprobs] = []
        scheduled = [step.row for step in plan.rows]
        assert len(set(scheduled)) == len(scheduled), "a row was scheduled twice in one step"
        num_tokens = 0
        for step in plan.rows:
            row = self.rows[step.row]
            row.pages += bytes_to_ids(step.page_ids)
            token_ids = bytes_to_ids(step.token_ids)
            if not token_ids:
                assert step.num_new_tokens == 1
                assert row.last_token is not None, "decode before a token was sampled"
                token_ids = [row.last_token]
                self.decoded_tokens += 1
            else:
                self.prefilled_tokens += len(token_ids)
            assert len(token_ids) == step.num_new_tokens
            num_tokens += len(token_ids)
            scored += self._scored(step.row, row, len(token_ids))
            for token in token_ids:
                page, slot = divmod(row.length, self.page_tokens)
                assert page < len(row.pages), "no page for a token"
                self.slots[row.pages[page], slot] = token
                row.length += 1
            if step.is_sampled:
                if step.row in self.broken_rows:
                    broken.append(BrokenRow(row=step.row, message="no finite logits"))
                context = self.context(step.row)
                assert GARBAGE not in context, "a row reads KV that nobody wrote"
                if row.output_ids is not None:
                    assert row.prompt_ids in (None, context[: row.num_prompt_tokens])
                    assert row.output_ids == context[row.num_prompt_tokens :], "the row lost or repeated an output id"
                    row.output_ids.append(next_token(context))
                row.last_token = next_token(context)
                sampled.append(row.last_token)
        return StepResult(
            step=plan.step,
            token_ids=ids_to_bytes(sampled),
            logprobs=tuple(b"" for _ in sampled),
            prompt_logprobs=tuple(scored),
            broken=tuple(broken),
            elapsed_s=0.01 + num_tokens * self.seconds_per_token,
        )

    def _scored(self, index: int, row: Row, num_new_tokens: int) -> list[PromptLogprobs]:
        """Position as logprob, so that a missing or repeated one is seen."""
        if row.first_logprob is None:
            return []
        first = max(row.length + 1, row.first_logprob)
        stop = min(row.length + num_new_tokens + 1, row.num_prompt_tokens)
        entries = tuple(pack_logprobs(float(position)) for position in range(first, stop))
        return [PromptLogprobs(row=index, first=first, entries=entries)] if entries else []

    def context(self, row: int) -> list[int]:
        table = self.rows[row]
        return self.slots[table.pages].reshape(-1)[: table.length].tolist()
