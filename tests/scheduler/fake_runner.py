"""A runner of plain lists that checks every plan, for tests of the scheduler.

It keeps, for every slot of every page, the token whose KV stands there, and reads a row's context back through its page
table. So a page that was shared, copied or given out wrongly shows up as a wrong context. The next token is a pure
function of the context: whatever was cached, chunked or batched, a request's output must be `expected_output`. A row
with penalties or a grammar must know exactly the ids of its context, however often it was retracted. A row with a
grammar often knows some of its next tokens at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wire.messages.encoding import bytes_to_ids, ids_to_bytes, pack_logprobs
from wire.messages.from_runner import BrokenRow, ForcedTokens, PromptLogprobs, StepResult
from wire.messages.to_runner import StepPlan

VOCABULARY = 50
GARBAGE = -1
NO_LOGITS = "no finite logits"
"""Why a row is broken, as the runner says it."""


def next_token(context: list[int]) -> int:
    return (sum((i + 1) * token for i, token in enumerate(context)) + len(context)) % VOCABULARY


def expected_output(prompt: list[int], *, max_new_tokens: int, stop_token_ids: tuple[int, ...] = ()) -> list[int]:
    context = list(prompt)
    while len(context) < len(prompt) + max_new_tokens:
        context.append(next_token(context))
        if context[-1] in stop_token_ids:
            break
    return context[len(prompt) :]


def expected_logprobs(prompt: list[int], first: int) -> list[float]:
    """Of the tokens from `first` on: numbers that tell position and everything up to there apart, and are exact."""
    sums = [0]
    for i, token in enumerate(prompt):
        sums.append((sums[-1] + (i + 1) * token) % 4096)
    return [position + sums[position + 1] / 4096 for position in range(max(1, first), len(prompt))]


@dataclass(slots=True)
class Row:
    pages: list[int]
    length: int
    last_token: int | None = None
    prompt_ids: list[int] | None = None
    output_ids: list[int] | None = None
    num_prompt_tokens: int = 0
    first_logprob: int | None = None
    has_logprobs: bool = False
    has_grammar: bool = False


@dataclass(slots=True)
class FakeRunner:
    num_pages: int
    page_tokens: int
    seconds_per_step: float = 0.01
    seconds_per_token: float = 0.001
    seconds_per_context_token: float = 0.0
    rows: dict[int, Row] = field(default_factory=dict)
    next_step: int = 0
    broken_rows: set[int] = field(default_factory=set)
    prefilled_tokens: int = 0
    decoded_tokens: int = 0
    forced: list[ForcedTokens] = field(default_factory=list)
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
            row.has_logprobs = admission.sampling.num_top_logprobs is not None
            row.has_grammar = admission.sampling.grammar is not None
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
        self.forced = []
        scored: list[PromptLogprobs] = []
        decodes = bytes_to_ids(plan.decodes)
        scheduled = decodes + [chunk.row for chunk in plan.chunks]
        assert len(set(scheduled)) == len(scheduled), "a row was scheduled twice in one step"
        for index, page in zip(bytes_to_ids(plan.grown_rows), bytes_to_ids(plan.grown_page_ids), strict=True):
            assert index in decodes, "a row gets a page and does not decode"
            self.rows[index].pages.append(page)
        elapsed_s = self.seconds_per_step + len(decodes) * self.seconds_per_token
        for index in decodes:
            last_token = self.rows[index].last_token
            assert last_token is not None, "decode before a token was sampled"
            self._compute(index, [last_token])
            sampled.append(index)
        self.decoded_tokens += len(decodes)
        for chunk in plan.chunks:
            row = self.rows[chunk.row]
            row.pages += bytes_to_ids(chunk.page_ids)
            token_ids = bytes_to_ids(chunk.token_ids)
            assert token_ids
            self.prefilled_tokens += len(token_ids)
            looked_at = row.length + len(token_ids) / 2
            elapsed_s += len(token_ids) * (self.seconds_per_token + looked_at * self.seconds_per_context_token)
            scored += self._scored(chunk.row, row, len(token_ids))
            self._compute(chunk.row, token_ids)
            if chunk.is_sampled:
                sampled.append(chunk.row)
        return StepResult(
            step=plan.step,
            token_ids=ids_to_bytes(self._sample(index) for index in sampled),
            logprobs=tuple(self._logprob(index) for index in sampled) if self._is_logprob_asked(sampled) else (),
            prompt_logprobs=tuple(scored),
            broken=tuple(BrokenRow(row=row, message=NO_LOGITS) for row in sampled if row in self.broken_rows),
            elapsed_s=elapsed_s,
            forced=tuple(self.forced),
        )

    def _compute(self, index: int, token_ids: list[int]) -> None:
        row = self.rows[index]
        for token in token_ids:
            page, slot = divmod(row.length, self.page_tokens)
            assert page < len(row.pages), "no page for a token"
            self.slots[row.pages[page], slot] = token
            row.length += 1

    def _sample(self, index: int) -> int:
        row, context = self.rows[index], self.context(index)
        assert GARBAGE not in context, "a row reads KV that nobody wrote"
        token = next_token(context)
        if row.output_ids is not None:
            assert row.prompt_ids in (None, context[: row.num_prompt_tokens])
            output = context[row.num_prompt_tokens :]
            assert row.output_ids[: len(output)] == output, "the row lost or repeated an output id"
            if len(row.output_ids) == len(output):
                row.output_ids.append(token)
                if row.has_grammar:
                    self._force(index, row, [*context, token])
            else:
                assert row.has_grammar and row.output_ids[len(output)] == token
        row.last_token = token
        return token

    def _force(self, index: int, row: Row, context: list[int]) -> None:
        """After two of three tokens, one to seven of the next ones are known."""
        start = len(context)
        while context[start - 1] % 3 and len(context) < start + 1 + context[start - 1] % 7:
            context.append(next_token(context))
        if len(context) > start:
            assert row.output_ids is not None
            row.output_ids += context[start:]
            self.forced.append(ForcedTokens(row=index, token_ids=ids_to_bytes(context[start:])))

    def _is_logprob_asked(self, rows: list[int]) -> bool:
        return any(self.rows[row].has_logprobs for row in rows)

    def _logprob(self, row: int) -> bytes:
        """The token as logprob, where one was asked."""
        token = self.rows[row].last_token
        return pack_logprobs(float(token or 0)) if self.rows[row].has_logprobs else b""

    def _scored(self, index: int, row: Row, num_new_tokens: int) -> list[PromptLogprobs]:
        """Logprobs that tell where they belong, so that a missing, repeated or foreign one is seen."""
        if row.first_logprob is None or row.prompt_ids is None:
            return []
        first = max(row.length + 1, row.first_logprob)
        stop = min(row.length + num_new_tokens + 1, row.num_prompt_tokens)
        logprobs = expected_logprobs(row.prompt_ids[:stop], first)
        entries = b"".join(map(pack_logprobs, logprobs))
        scored = PromptLogprobs(row=index, first=first, num_tokens=len(logprobs), entries=entries)
        return [scored] if logprobs else []

    def context(self, row: int) -> list[int]:
        table = self.rows[row]
        return self.slots[table.pages].reshape(-1)[: table.length].tolist()
