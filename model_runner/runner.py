"""Executes plans strictly in order: release, copy, admit, forward, sample. Decides nothing and holds no sockets."""

# B sampled rows · T tokens in batch · D model dim · V vocabulary

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from wire.messages.encoding import ids_to_bytes
from wire.messages.from_runner import BrokenRow, ForcedTokens, PromptLogprobs, StepResult
from wire.messages.to_runner import StepPlan

from .attention.backend import AttentionBackend
from .batch import Batches, BatchPlan
from .choosing import Chooser, Choosing, Chosen, Follower
from .device_sampler import DeviceSampler
from .errors import FatalError
from .feed import LastTokens
from .graphs import DecodeGraphs
from .kernels.sampler import SamplerKernels
from .kv_pool import CPU, KVPool
from .logprobs import PromptScorer
from .models.model import Model
from .ranks import Alone, Ranks
from .results import Fetched, Results
from .rows import RowTable
from .staging import Staging

Handle = TypeVar("Handle")

LEAST_FORCED = 2
"""Fewer forced tokens are not worth telling: the next step, which is planned by now, gives the first one anyway."""

NO_LOGITS = "the model gave no usable logits (NaN or infinite) for this request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A step that the device may still be busy with. `messages` say what is wrong with rows already, by row.

    `forced` is what their grammars leave no choice about behind this step's tokens.
    """

    step: int
    rows: tuple[int, ...] = ()
    fetched: Fetched | None = None
    logprobs: tuple[bytes, ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    messages: dict[int, str] = field(default_factory=dict)
    forced: dict[int, list[int]] = field(default_factory=dict)

    def is_done(self) -> bool:
        """Whether `result` returns at once."""
        return self.fetched is None or self.fetched.is_here()

    def result(self) -> StepResult:
        """What the scheduler is told; waits for the step."""
        if self.fetched is None:
            return StepResult(step=self.step, token_ids=b"")
        token_ids, broken = self.fetched.take()
        messages = dict.fromkeys((self.rows[b] for b in broken), NO_LOGITS) | self.messages
        return StepResult(
            step=self.step,
            token_ids=token_ids.tobytes(),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            broken=tuple(BrokenRow(row=row, message=message) for row, message in messages.items()),
            forced=tuple(ForcedTokens(row=row, token_ids=ids_to_bytes(ids)) for row, ids in self.forced.items()),
        )


class Runner(Generic[Handle]):
    """A model, its KV pool and the rows that live in it; `graphs` compute the steps that they fit.

    Of several ranks, each runs every step and the first one chooses the tokens.
    """

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend[Handle],
        pool: KVPool,
        *,
        device: torch.device = CPU,
        ranks: Ranks | None = None,
        tokenizer: Path | None = None,
        device_sampler: DeviceSampler | None = None,
        sampler_kernels: SamplerKernels | None = None,
        graphs: DecodeGraphs[Handle] | None = None,
    ) -> None:
        self._model = model
        self._backend = backend
        self._pool = pool
        self._graphs = graphs
        self._table = RowTable(num_pages=pool.num_pages, page_tokens=pool.page_tokens)
        self._batches = Batches(self._table, vocabulary=model.vocabulary)
        self._ranks = ranks or Alone()
        self._chooser: Choosing = Follower()
        if self._ranks.rank == 0:
            self._chooser = Chooser(
                vocabulary=model.vocabulary, tokenizer=tokenizer, device_sampler=device_sampler, kernels=sampler_kernels
            )
        self._scorer = PromptScorer()
        self._staging, self._last_tokens, self._results = Staging(device), LastTokens(device), Results(device)
        self._next_step = 0

    @property
    def num_steps(self) -> int:
        """Steps taken up so far."""
        return self._next_step

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one plan and wait for its result.

        Raises:
            FatalError: as `launch` does.
        """
        return self.launch(plan).result()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Launched:
        """Queue one plan. The result of one plan may be outstanding when the next is launched, and no more.

        Raises:
            FatalError: it is not the next one, or does not fit the rows; the runner is not to be used any more.
        """
        if plan.step != self._next_step:
            raise FatalError(f"step {plan.step} came where step {self._next_step} was due")
        self._next_step += 1
        # One turn of the ring for all that a step sends: the device is done with it when it is done with the step.
        with self._staging.step():
            return self._launched(plan)

    def _launched(self, plan: StepPlan) -> Launched:
        self._prepare(plan)
        if not plan.decodes and not plan.chunks:
            return Launched(step=plan.step)
        batch = self._batches.build(plan)
        hidden_TD, logits_BV = self._computed(batch)
        rows = batch.rows[batch.sampled].tolist()
        chosen = self._choose(logits_BV, batch, rows)
        prompt_logprobs, broken_rows = self._scorer.score(batch, hidden_TD, lambda x: self._model.logits(x).cpu())
        self._table.lengths[batch.rows] = batch.kv_lens
        return Launched(
            step=plan.step,
            rows=tuple(rows),
            fetched=self._results.fetch(chosen.token_ids_B, chosen.is_usable_B),
            logprobs=chosen.logprobs,
            prompt_logprobs=prompt_logprobs,
            messages=dict.fromkeys(broken_rows, NO_LOGITS) | chosen.failures,
            forced={row: ids for row, ids in chosen.forced.items() if len(ids) >= LEAST_FORCED},
        )

    @torch.inference_mode()
    def forward(self, batch: BatchPlan) -> Tensor:
        """Hidden states [T, D] of a batch, storing its K and V."""
        with self._staging.step():
            return self._forward(batch)

    def _forward(self, batch: BatchPlan) -> Tensor:
        handle = self._backend.begin_step(batch)
        token_ids_T, positions_T = self._inputs(batch)
        return self._model.forward(token_ids_T, positions_T, self._backend, handle)

    def _prepare(self, plan: StepPlan) -> None:
        """All of a plan that comes before the model: rows that go and come, copies, new pages."""
        for row in plan.released:
            self._table.release(row)
            self._chooser.release(row)
            self._scorer.release(row)
        self._copy(plan)
        for admission in plan.admissions:
            self._table.admit(admission)
            self._chooser.admit(admission)
            self._scorer.admit(admission)
        self._table.append_page_each(plan.grown_rows, plan.grown_page_ids)
        for chunk in plan.chunks:
            if chunk.row in self._table.sampling:
                self._table.append_pages(chunk.row, chunk.page_ids)

    def _copy(self, plan: StepPlan) -> None:
        if not plan.copies:
            return
        pages = np.array([(copy.source, copy.destination) for copy in plan.copies], np.int64)
        if pages.min() < 0 or pages.max() >= self._pool.num_pages:
            raise FatalError(f"the plan copies pages outside of the pool's {self._pool.num_pages} pages")
        self._pool.copy_pages(self._staging.device(pages[:, 0]), self._staging.device(pages[:, 1]))

    def _inputs(self, batch: BatchPlan) -> tuple[Tensor, Tensor]:
        """Token ids and positions on the device, decode rows' last tokens included."""
        token_ids_T = self._staging.device(batch.token_ids_T.numpy())
        if batch.num_decodes:
            self._last_tokens.fill(token_ids_T, self._staging.device(batch.rows[: batch.num_decodes]))
        return token_ids_T, self._staging.device(batch.positions_T.numpy())

    def _computed(self, batch: BatchPlan) -> tuple[Tensor, Tensor]:
        """Hidden states [T, D], none of a graph, and logits [B, V] of the sampled rows."""
        if self._graphs is not None and self._graphs.fit(batch):
            logits_BV = self._graphs.logits(*self._inputs(batch), batch)
            return logits_BV[:0], logits_BV
        hidden_TD = sampled_BD = self._forward(batch)
        if len(batch.sampled) < len(hidden_TD):
            last_tokens_B = self._staging.device(batch.qo_indptr[1:][batch.sampled].astype(np.int64) - 1)
            sampled_BD = hidden_TD.index_select(0, last_tokens_B)
        return hidden_TD, self._model.logits(sampled_BD)

    def _choose(self, logits_BV: Tensor, batch: BatchPlan, rows: list[int]) -> Chosen:
        """A token for each sampled row, kept to go on from."""
        if not rows:
            nothing = torch.empty(0, dtype=torch.int64)
            return Chosen(token_ids_B=nothing, is_usable_B=nothing.bool())
        params = [self._table.sampling[row] for row in rows]
        positions = batch.kv_lens[batch.sampled].astype(np.int64)
        chosen = self._chooser.choose(logits_BV, rows, params, positions)
        self._ranks.take_first_(chosen.token_ids_B)
        rows_B = self._staging.device(batch.rows[batch.sampled])
        self._last_tokens.put(rows_B, chosen.token_ids_B, highest_row=max(rows))
        return chosen
