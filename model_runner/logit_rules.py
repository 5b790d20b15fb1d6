"""What requests change in their logits before a token is chosen: penalties, bias, a least length.

Keeps, for each live row that needs it, the ids it has seen. Knows no model and no random numbers. What it does to a
row's logits depends on that row only; rows without rules cost nothing.
"""

# B sampled rows · V vocabulary · N seen ids of all rows with penalties

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wire.messages.to_runner import Admission

from .kernels.logit_rules import LogitChanges, LogitKernels

_GROWTH = 64
_NO_IDS = np.zeros(0, np.int64)
_NO_COUNTS = np.zeros(0, np.float32)


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
        self._sampling = admission.sampling
        self.seen: _Seen | None = None
        if self._sampling.has_penalties:
            self.seen = _Seen(np.frombuffer(admission.prompt_ids, "<i4"), np.frombuffer(admission.output_ids, "<i4"))
        biases = dict(self._sampling.logit_bias)
        self._biased_ids = np.array(list(biases), np.int64)
        self._biases = np.array(list(biases.values()), np.float32)
        # The first position where a stop id may stand.
        self._first_end = admission.num_prompt_tokens + self._sampling.min_new_tokens
        stop_ids = self._sampling.stop_token_ids if self._sampling.min_new_tokens else ()
        self._stop_ids = np.array([token_id for token_id in stop_ids if token_id < vocabulary], np.int64)

    def changes(self, position: int) -> LogitChanges:
        """What they change in the logits of the token at `position`."""
        return LogitChanges(
            seen_ids=_NO_IDS if self.seen is None else self.seen.ids,
            counts=_NO_COUNTS if self.seen is None else self.seen.counts,
            repetition=self._sampling.repetition_penalty,
            frequency=self._sampling.frequency_penalty,
            presence=self._sampling.presence_penalty,
            biased_ids=self._biased_ids,
            biases=self._biases,
            forbidden_ids=self._stop_ids if position < self._first_end else _NO_IDS,
        )


class LogitRules:
    """The rules of the live rows that have any; `kernels` apply them in C++, None in plain torch."""

    def __init__(self, *, vocabulary: int, kernels: LogitKernels | None = None) -> None:
        self._vocabulary = vocabulary
        self._kernels = kernels
        self._rules: dict[int, _Rules] = {}

    def admit(self, admission: Admission) -> None:
        """Begin a row."""
        sampling = admission.sampling
        if sampling.has_penalties or sampling.logit_bias or sampling.min_new_tokens:
            self._rules[admission.row] = _Rules(admission, self._vocabulary)

    def release(self, row: int) -> None:
        """End a row."""
        self._rules.pop(row, None)

    def note(self, rows: Sequence[int], token_ids: NDArray[np.int64]) -> None:
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
        changes = {b: self._rules[row].changes(positions[b]) for b, row in enumerate(rows) if row in self._rules}
        if not changes:
            return logits_BV
        return changed(logits_BV, changes) if self._kernels is None else self._kernels.changed(logits_BV, changes)


def changed(logits_BV: Tensor, changes: Mapping[int, LogitChanges]) -> Tensor:
    """A copy of float32 logits with the changes of some of its rows, in torch."""
    changed_BV = logits_BV.clone(memory_format=torch.contiguous_format)
    flat, vocabulary = changed_BV.view(-1), logits_BV.shape[1]
    penalised = {b: one for b, one in changes.items() if len(one.seen_ids)}
    if penalised:
        _penalise(flat, _places({b: one.seen_ids for b, one in penalised.items()}, vocabulary), penalised.values())
    biased = {b: one for b, one in changes.items() if len(one.biased_ids)}
    if biased:
        biases = torch.from_numpy(np.concatenate([one.biases for one in biased.values()]))
        flat.index_add_(0, _places({b: one.biased_ids for b, one in biased.items()}, vocabulary), biases)
    forbidden = {b: one.forbidden_ids for b, one in changes.items() if len(one.forbidden_ids)}
    if forbidden:
        flat.index_fill_(0, _places(forbidden, vocabulary), -torch.inf)
    return changed_BV


def _penalise(flat: Tensor, places_N: Tensor, penalised: Collection[LogitChanges]) -> None:
    sizes = torch.tensor([len(one.seen_ids) for one in penalised])

    def spread(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32).repeat_interleave(sizes)

    counts_N = torch.from_numpy(np.concatenate([one.counts for one in penalised]))
    repetition_N = spread([one.repetition for one in penalised])
    frequency_N = spread([one.frequency for one in penalised])
    presence_N = spread([one.presence for one in penalised])
    logits_N = flat.index_select(0, places_N)
    logits_N = torch.where(logits_N < 0, logits_N * repetition_N, logits_N / repetition_N)
    logits_N -= frequency_N * counts_N
    logits_N -= presence_N * (counts_N > 0)
    flat.index_copy_(0, places_N, logits_N)


def _places(ids_of_rows: Mapping[int, NDArray[np.int64]], vocabulary: int) -> Tensor:
    """Where every id stands in the flat logits (indexing by row and column takes four times as long)."""
    return torch.from_numpy(np.concatenate([b * vocabulary + ids for b, ids in ids_of_rows.items()]))
