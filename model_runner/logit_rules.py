"""What requests change in their logits before a token is chosen: penalties, bias, a least length.

Keeps, for each live row that needs it, the ids it has seen. Knows no model and no random numbers. What it does to a
row's logits depends on that row only; rows without rules cost nothing.
"""

# B sampled rows · V vocabulary · N seen ids of all rows with penalties

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wire.messages.to_runner import Admission
from wire.sampling import SamplingParams

_GROWTH = 64


class _Seen:
    """The distinct ids of one row, with how often each stands in the output (0: in the prompt only)."""

    def __init__(self, prompt_ids: NDArray[np.int32], output_ids: NDArray[np.int32]) -> None:
        ids = np.unique(np.concatenate((prompt_ids, output_ids)))
        self.size = len(ids)
        self._ids = np.zeros(self.size + _GROWTH, np.int64)
        self._ids[: self.size] = ids
        self._counts = np.zeros(self.size + _GROWTH, np.float32)
        self._slots = {token_id: slot for slot, token_id in enumerate(ids.tolist())}
        for token_id in output_ids.tolist():
            self.add(token_id)

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._ids[: self.size]

    @property
    def counts(self) -> NDArray[np.float32]:
        return self._counts[: self.size]

    def add(self, token_id: int) -> None:
        """Count one token of the output."""
        slot = self._slots.setdefault(token_id, self.size)
        if slot == self.size:
            if slot == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._ids[slot] = token_id
            self.size += 1
        self._counts[slot] += 1


class _Rules:
    """One row's rules."""

    def __init__(self, admission: Admission, vocabulary: int) -> None:
        self.sampling: SamplingParams = admission.sampling
        self.seen: _Seen | None = None
        if self.sampling.has_penalties:
            self.seen = _Seen(np.frombuffer(admission.prompt_ids, "<i4"), np.frombuffer(admission.output_ids, "<i4"))
        biases = dict(self.sampling.logit_bias)
        self.bias_ids = np.array(list(biases), np.int64)
        self.biases = np.array(list(biases.values()), np.float32)
        self.first_end = admission.num_prompt_tokens + self.sampling.min_new_tokens
        """The first position where a stop id may stand."""
        stop_ids = self.sampling.stop_token_ids if self.sampling.min_new_tokens else ()
        self.stop_ids = np.array([token_id for token_id in stop_ids if token_id < vocabulary], np.int64)


class LogitRules:
    """The rules of the live rows that have any."""

    def __init__(self, *, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._rules: dict[int, _Rules] = {}

    def admit(self, admission: Admission) -> None:
        """Begin a row."""
        sampling = admission.sampling
        if sampling.has_penalties or sampling.logit_bias or sampling.min_new_tokens:
            self._rules[admission.row] = _Rules(admission, self._vocabulary)

    def release(self, row: int) -> None:
        """End a row."""
        self._rules.pop(row, None)

    def note(self, rows: Sequence[int], token_ids: NDArray[np.int32]) -> None:
        """Take the tokens that were chosen for these rows."""
        if not self._rules:
            return
        for row, token_id in zip(rows, token_ids.tolist(), strict=True):
            rules = self._rules.get(row)
            if rules is not None and rules.seen is not None:
                rules.seen.add(token_id)

    def applied(self, logits_BV: Tensor, rows: Sequence[int], positions: NDArray[np.int64]) -> Tensor:
        """The logits with the rules of `rows` applied, `positions` being where their tokens will stand.

        It is `logits_BV` itself when no row has a rule, else a copy.
        """
        ruled = [(b, self._rules[row]) for b, row in enumerate(rows) if row in self._rules] if self._rules else []
        if not ruled:
            return logits_BV
        changed_BV = logits_BV.clone(memory_format=torch.contiguous_format)
        flat = changed_BV.view(-1)
        seen_rows = [(b, rules.sampling, rules.seen) for b, rules in ruled if rules.seen is not None]
        if seen_rows:
            _penalise(flat, _places([(b, seen.ids) for b, _, seen in seen_rows], self._vocabulary), seen_rows)
        biased = [(b, rules) for b, rules in ruled if len(rules.bias_ids)]
        if biased:
            biases = torch.from_numpy(np.concatenate([rules.biases for _, rules in biased]))
            flat.index_add_(0, _places([(b, rules.bias_ids) for b, rules in biased], self._vocabulary), biases)
        unfinished = [(b, rules.stop_ids) for b, rules in ruled if positions[b] < rules.first_end]
        if unfinished:
            flat.index_fill_(0, _places(unfinished, self._vocabulary), -torch.inf)
        return changed_BV


def _penalise(flat: Tensor, places_N: Tensor, seen_rows: Sequence[tuple[int, SamplingParams, _Seen]]) -> None:
    sizes = torch.tensor([seen.size for _, _, seen in seen_rows])

    def spread(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32).repeat_interleave(sizes)

    counts_N = torch.from_numpy(np.concatenate([seen.counts for _, _, seen in seen_rows]))
    repetition_N = spread([sampling.repetition_penalty for _, sampling, _ in seen_rows])
    frequency_N = spread([sampling.frequency_penalty for _, sampling, _ in seen_rows])
    presence_N = spread([sampling.presence_penalty for _, sampling, _ in seen_rows])
    logits_N = flat.index_select(0, places_N)
    logits_N = torch.where(logits_N < 0, logits_N * repetition_N, logits_N / repetition_N)
    logits_N -= frequency_N * counts_N
    logits_N -= presence_N * (counts_N > 0)
    flat.index_copy_(0, places_N, logits_N)


def _places(ids_of_rows: Sequence[tuple[int, NDArray[np.int64]]], vocabulary: int) -> Tensor:
    """Where every id stands in the flat logits (indexing by row and column takes four times as long)."""
    return torch.from_numpy(np.concatenate([b * vocabulary + ids for b, ids in ids_of_rows]))
