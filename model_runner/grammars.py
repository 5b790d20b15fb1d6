"""The grammars of live rows: which tokens may come next, advanced with each token that is chosen.

A grammar is compiled in a thread while its row's prompt is computed; a resumed row's follows its output again. Knows
no model. The vocabulary's own tables are made at the first grammar, which takes up to a second once.
"""

# B sampled rows · V vocabulary

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray
from torch import Tensor

from wire.messages.to_runner import Admission
from wire.sampling import Grammar


class GrammarRules:
    """The grammars of the rows that have one; `tokenizer` is the path of the model's `tokenizer.json`."""

    def __init__(self, *, vocabulary: int, tokenizer: Path | None) -> None:
        self._vocabulary = vocabulary
        self._path = tokenizer
        self._tokenizer: LLTokenizer | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._matchers: dict[int, Future[LLMatcher]] = {}

    def admit(self, admission: Admission) -> None:
        """Begin a row."""
        grammar = admission.sampling.grammar
        if grammar is not None:
            output_ids = np.frombuffer(admission.output_ids, "<i4").tolist()
            self._matchers[admission.row] = self._thread.submit(self._compiled, grammar, output_ids)

    def release(self, row: int) -> None:
        """End a row."""
        self._matchers.pop(row, None)

    def applied(self, logits_BV: Tensor, rows: Sequence[int]) -> tuple[Tensor, dict[int, str]]:
        """The logits with all tokens ruled out that may not come next, and why a row can't go on, by row.

        They are `logits_BV` itself when no row has a grammar, else a copy.
        """
        ruled = [(b, self._matchers[row]) for b, row in enumerate(rows) if row in self._matchers]
        if not ruled:
            return logits_BV, {}
        failures: dict[int, str] = {}
        mask = allocate_token_bitmask(len(ruled), self._vocabulary)
        for i, (b, compiled) in enumerate(ruled):
            matcher = compiled.result()
            if not matcher.is_error():
                fill_next_token_bitmask(matcher, mask, i)
            if matcher.is_error():
                failures[rows[b]] = _failure(matcher)
        is_allowed = np.unpackbits(mask.view(np.uint8), axis=1, count=self._vocabulary, bitorder="little")
        changed_BV = logits_BV.clone()
        where = torch.tensor([b for b, _ in ruled])
        ruled_out = torch.from_numpy(is_allowed == 0)
        changed_BV[where] = changed_BV[where].masked_fill_(ruled_out, -torch.inf)
        return changed_BV, failures

    def note(self, rows: Sequence[int], token_ids: NDArray[np.int32]) -> None:
        """Take the tokens that were chosen for these rows."""
        if not self._matchers:
            return
        for row, token_id in zip(rows, token_ids.tolist(), strict=True):
            compiled = self._matchers.get(row)
            if compiled is not None:
                compiled.result().consume_token(token_id)

    def _compiled(self, grammar: Grammar, output_ids: Sequence[int]) -> LLMatcher:
        if self._tokenizer is None:
            assert self._path is not None, "a runner without a tokenizer gets no grammars"
            self._tokenizer = LLTokenizer(
                self._path.read_text(encoding="utf-8"),
                n_vocab=self._vocabulary,
                eos_token=[token_id for token_id in grammar.eos_token_ids if token_id < self._vocabulary],
            )
        matcher = LLMatcher(self._tokenizer, grammar.source, log_level=0)
        matcher.consume_tokens(list(output_ids))
        return matcher


def _failure(matcher: LLMatcher) -> str:
    reason = str(matcher.get_error()).partition("\n")[0]
    return f"the answer can't go on as its grammar wants: {reason or matcher.stop_reason()}"
