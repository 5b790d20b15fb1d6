"""The grammars of live rows: which tokens may come next, advanced with each token that is chosen.

A grammar is compiled in a thread while its row's prompt is computed; a resumed row's follows its output again. Knows
no model. The vocabulary's own tables are made at the first grammar, which takes up to a second once.

Where a grammar leaves no choice about the next tokens, they are taken as soon as that is known: the row is asked for
them one by one or not at all, as the scheduler plans, and gives just these. They are the tokens that its masks would
have left one by one, those that the tokenizer makes of the forced text.
"""

# B sampled rows · V vocabulary

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray
from torch import Tensor

from wire.grammar_tokenizer import grammar_tokenizer
from wire.messages.to_runner import Admission
from wire.sampling import Grammar

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_HIGHEST = np.where(_BITS == 1, np.inf, -np.inf).astype(np.float32)
"""For each byte of a mask the highest logits that its eight tokens may have: looked up in a seventh of the time that
masking by booleans takes."""


@dataclass(slots=True)
class _Row:
    """A row's grammar, which has taken the tokens up to the end of `forced_ids`; these begin at `forced_at`.

    With `is_forcing` tokens are taken before they are asked for.
    """

    compiled: Future[LLMatcher]
    is_forcing: bool
    forced_at: int = 0
    forced_ids: list[int] = field(default_factory=list)

    def settled(self, position: int) -> int | None:
        """The token that is taken already at a position; None where one is still to be chosen."""
        place = position - self.forced_at
        return self.forced_ids[place] if 0 <= place < len(self.forced_ids) else None

    def take(self, token_id: int, position: int) -> list[int]:
        """Take the token at `position` and those that must follow it, which are returned."""
        matcher = self.compiled.result()
        matcher.consume_token(token_id)
        self.forced_at, self.forced_ids = position + 1, []
        if self.is_forcing and not matcher.is_stopped():
            self.forced_ids = matcher.compute_ff_tokens()
            matcher.consume_tokens(self.forced_ids)
        return self.forced_ids


class GrammarRules:
    """The grammars of the rows that have one; `tokenizer` is the path of the model's `tokenizer.json`."""

    def __init__(self, *, vocabulary: int, tokenizer: Path | None) -> None:
        self._vocabulary = vocabulary
        self._path = tokenizer
        self._tokenizer: LLTokenizer | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._rows: dict[int, _Row] = {}

    def admit(self, admission: Admission) -> None:
        """Begin a row."""
        sampling = admission.sampling
        if sampling.grammar is not None:
            output_ids = np.frombuffer(admission.output_ids, "<i4").tolist()
            self._rows[admission.row] = _Row(
                compiled=self._thread.submit(self._compiled, sampling.grammar, output_ids),
                # A logprob is the model's own opinion of a token, which it gives in that token's step only.
                is_forcing=sampling.num_top_logprobs is None,
            )

    def release(self, row: int) -> None:
        """End a row."""
        self._rows.pop(row, None)

    def applied(
        self, logits_BV: Tensor, rows: Sequence[int], positions: NDArray[np.int64]
    ) -> tuple[Tensor, dict[int, str]]:
        """The logits with all tokens ruled out that may not come next, and why a row can't go on, by row.

        They are `logits_BV` itself when no row has a grammar, else a copy. `positions` are where the tokens will stand.
        """
        ruled = [(b, self._rows[row]) for b, row in enumerate(rows) if row in self._rows]
        if not ruled:
            return logits_BV, {}
        failures: dict[int, str] = {}
        mask = allocate_token_bitmask(1, self._vocabulary)
        changed_BV = logits_BV.clone(memory_format=torch.contiguous_format)
        for b, ruled_row in ruled:
            logits_V = changed_BV[b].numpy()
            settled = ruled_row.settled(int(positions[b]))
            if settled is not None:
                logits_V[:settled] = logits_V[settled + 1 :] = -np.inf
                continue
            matcher = ruled_row.compiled.result()
            if not matcher.is_error():
                fill_next_token_bitmask(matcher, mask)
                highest_V = np.take(_HIGHEST, mask.view(np.uint8)[0], axis=0).reshape(-1)
                np.minimum(logits_V, highest_V[: self._vocabulary], out=logits_V)
            if matcher.is_error():
                failures[rows[b]] = _failure(matcher)
        return changed_BV, failures

    def open_places(self, rows: Sequence[int], positions: NDArray[np.int64]) -> list[int]:
        """Which of these rows got tokens that weren't taken before."""
        return [
            b
            for b, row in enumerate(rows)
            if (ruled := self._rows.get(row)) is None or ruled.settled(int(positions[b])) is None
        ]

    def note(
        self, rows: Sequence[int], token_ids: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> dict[int, list[int]]:
        """Take the tokens that were chosen for these rows; return those that must follow them, by row."""
        if not self._rows:
            return {}
        forced: dict[int, list[int]] = {}
        for row, token_id, position in zip(rows, token_ids.tolist(), positions.tolist(), strict=True):
            ruled = self._rows.get(row)
            if ruled is not None and (forced_ids := ruled.take(token_id, position)):
                forced[row] = forced_ids
        return forced

    def _compiled(self, grammar: Grammar, output_ids: Sequence[int]) -> LLMatcher:
        if self._tokenizer is None:
            assert self._path is not None, "a runner without a tokenizer gets no grammars"
            self._tokenizer = LLTokenizer(
                grammar_tokenizer(self._path.read_text(encoding="utf-8")),
                n_vocab=self._vocabulary,
                eos_token=[token_id for token_id in grammar.eos_token_ids if token_id < self._vocabulary],
            )
        matcher = LLMatcher(self._tokenizer, grammar.source, log_level=0)
        matcher.consume_tokens(list(output_ids))
        return matcher


def _failure(matcher: LLMatcher) -> str:
    reason = str(matcher.get_error()).partition("\n")[0]
    return f"the answer can't go on as its grammar wants: {reason or matcher.stop_reason()}"
