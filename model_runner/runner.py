"""Executes plans strictly in order: release, copy, admit, forward, sample. Decides nothing and holds no sockets."""

# B sampled rows · T tokens in batch · D model dim · V vocabulary

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from wire.messages import BrokenRow, StepPlan, StepResult

from .attention.backend import AttentionBackend
from .batch import BatchPlan, build_batch
from .errors import FatalError
from .grammars import GrammarRules
from .kv_pool import CPU, KVPool
from .logit_rules import LogitRules
from .logprobs import PromptScorer
from .models.model import Model
from .rows import RowTable
from .sampler import Sampled, sample
from .staging import Staging

Handle = TypeVar("Handle")

NO_LOGITS = "the model gave no usable logits (NaN or infinite) for this request"


class Runner(Generic[Handle]):
    """A model, its KV pool and the rows that live in it."""

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend[Handle],
        pool: KVPool,
        *,
        device: torch.device = CPU,
        tokenizer: Path | None = None,
    ) -> None:
        self._model = model
        self._staging = Staging(device)
        self._backend = backend
        self._pool = pool
        self._table = RowTable(num_pages=pool.num_pages, page_tokens=pool.page_tokens)
        self._rules = LogitRules(vocabulary=model.vocabulary)
        self._grammars = GrammarRules(vocabulary=model.vocabulary, tokenizer=tokenizer)
        self._scorer = PromptScorer()
        self._next_step = 0

    @property
    def num_steps(self) -> int:
        """Steps executed so far."""
        return self._next_step

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one plan.

        Raises:
            FatalError: it is not the next one, or does not fit the rows; the runner is not to be used any more.
        """
        if plan.step != self._next_step:
            raise FatalError(f"step {plan.step} came where step {self._next_step} was due")
        self._next_step += 1
        for row in plan.released:
            self._table.release(row)
            self._rules.release(row)
            self._grammars.release(row)
            self._scorer.release(row)
        self._copy(plan)
        for admission in plan.admissions:
            self._table.admit(admission)
            self._rules.admit(admission)
            self._grammars.admit(admission)
            self._scorer.admit(admission)
        self._table.append_page_each(plan.grown_rows, plan.grown_page_ids)
        for chunk in plan.chunks:
            if chunk.row in self._table.sampling:
                self._table.append_pages(chunk.row, chunk.page_ids)
        if not plan.decodes and not plan.chunks:
            return StepResult(step=plan.step, token_ids=b"")
        batch = build_batch(self._table, plan, vocabulary=self._model.vocabulary)
        hidden_TD = self.forward(batch)
        rows = batch.rows[batch.sampled].tolist()
        sampled, failures = self._sample(hidden_TD, batch, rows)
        prompt_logprobs, broken_rows = self._scorer.score(batch, hidden_TD, self._logits)
        broken_rows += tuple(rows[i] for i in sampled.broken)
        broken = dict.fromkeys(broken_rows, NO_LOGITS) | failures
        self._table.lengths[batch.rows] = batch.kv_lens
        self._table.last_tokens[rows] = sampled.token_ids
        self._rules.note(rows, sampled.token_ids)
        self._grammars.note(rows, sampled.token_ids)
        return StepResult(
            step=plan.step,
            token_ids=sampled.token_ids.tobytes(),
            logprobs=sampled.logprobs,
            prompt_logprobs=prompt_logprobs,
            broken=tuple(BrokenRow(row=row, message=message) for row, message in broken.items()),
        )

    @torch.inference_mode()
    def forward(self, batch: BatchPlan) -> Tensor:
        """Hidden states [T, D] of a batch, storing its K and V."""
        handle = self._backend.begin_step(batch)
        with self._staging.step():
            token_ids_T = self._staging.device(batch.token_ids_T.numpy())
            positions_T = self._staging.device(batch.positions_T.numpy())
        return self._model.forward(token_ids_T, positions_T, self._backend, handle)

    def _logits(self, hidden_BD: Tensor) -> Tensor:
        """Logits [B, V] on the host, where requests' rules and the sampler read them."""
        return self._model.logits(hidden_BD).cpu()

    def _copy(self, plan: StepPlan) -> None:
        if not plan.copies:
            return
        sources = [copy.source for copy in plan.copies]
        destinations = [copy.destination for copy in plan.copies]
        if min(sources + destinations) < 0 or max(sources + destinations) >= self._pool.num_pages:
            raise FatalError(f"the plan copies pages outside of the pool's {self._pool.num_pages} pages")
        self._pool.copy_pages(torch.tensor(sources), torch.tensor(destinations))

    def _sample(self, hidden_TD: Tensor, batch: BatchPlan, rows: list[int]) -> tuple[Sampled, dict[int, str]]:
        """The tokens, and why rows can't follow their grammars, by row."""
        if not rows:
            return Sampled(token_ids=np.empty(0, np.int32), logprobs=(), broken=()), {}
        last_tokens = torch.from_numpy(batch.qo_indptr[1:][batch.sampled].astype(np.int64) - 1)
        logits_BV = self._logits(hidden_TD.index_select(0, last_tokens.to(hidden_TD.device)))
        params = [self._table.sampling[row] for row in rows]
        positions = batch.kv_lens[batch.sampled].astype(np.int64)
        changed_BV, failures = self._grammars.applied(self._rules.applied(logits_BV, rows, positions), rows)
        return sample(changed_BV, params, positions, raw_logits_BV=logits_BV), failures
