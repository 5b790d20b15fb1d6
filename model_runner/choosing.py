"""Which token each row gets, and where that is worked out: on the device, or on the host for what needs the host.

Rows with penalties, a bias, a least length, a grammar or logprobs are the host's: their logits are waited for. All
others are chosen where their logits lie, and nothing is waited for. On a CPU, which is the host, all are the host's.
"""

# B sampled rows · V vocabulary

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wire.messages.to_runner import Admission
from wire.sampling import SamplingParams

from .device_sampler import DeviceSampler
from .grammars import GrammarRules
from .kernels.sampler import SamplerKernels
from .logit_rules import LogitRules
from .sampler import Sampled, sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A step's tokens, on the device, and what the host knows of them already.

    `is_usable_B` is false where a row had no usable logits. `failures` says why rows can't go on, by row, and `forced`
    what must stand behind their tokens.
    """

    token_ids_B: Tensor
    is_usable_B: Tensor
    logprobs: tuple[bytes, ...] = ()
    failures: dict[int, str] = field(default_factory=dict)
    forced: dict[int, list[int]] = field(default_factory=dict)


class Choosing(Protocol):
    """What gives rows their tokens."""

    def admit(self, admission: Admission) -> None:
        """Begin a row."""

    def release(self, row: int) -> None:
        """End a row."""

    def choose(
        self, logits_BV: Tensor, rows: Sequence[int], params: Sequence[SamplingParams], positions: NDArray[np.int64]
    ) -> Chosen:
        """The tokens of `rows`, which will stand at `positions`, from the device's logits."""


class Follower:
    """On ranks behind the first: room for the tokens that rank 0 chooses."""

    def admit(self, admission: Admission) -> None:
        """Rank 0 keeps the rules."""

    def release(self, row: int) -> None:
        """Rank 0 keeps the rules."""

    def choose(
        self, logits_BV: Tensor, rows: Sequence[int], params: Sequence[SamplingParams], positions: NDArray[np.int64]
    ) -> Chosen:
        """Zeros, to be overwritten."""
        token_ids_B = torch.zeros(len(rows), dtype=torch.int64, device=logits_BV.device)
        return Chosen(token_ids_B=token_ids_B, is_usable_B=torch.ones_like(token_ids_B).bool())


class Chooser:
    """The rules of the live rows, and the samplers.

    `device_sampler` is None where the device is the host; `kernels` are the host's in C++, None for plain torch.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        tokenizer: Path | None,
        device_sampler: DeviceSampler | None,
        kernels: SamplerKernels | None,
    ) -> None:
        self._rules = LogitRules(vocabulary=vocabulary, kernels=None if kernels is None else kernels.logits)
        self._grammars = GrammarRules(vocabulary=vocabulary, tokenizer=tokenizer)
        self._device_sampler = device_sampler
        self._kernels = kernels

    def admit(self, admission: Admission) -> None:
        """Begin a row."""
        self._rules.admit(admission)
        self._grammars.admit(admission)

    def release(self, row: int) -> None:
        """End a row."""
        self._rules.release(row)
        self._grammars.release(row)

    def choose(
        self, logits_BV: Tensor, rows: Sequence[int], params: Sequence[SamplingParams], positions: NDArray[np.int64]
    ) -> Chosen:
        """The tokens of `rows`, which will stand at `positions`, from the device's logits."""
        sampler = self._device_sampler
        if sampler is None:
            return self._host_only(logits_BV, rows, params, positions)
        is_host = np.array([_needs_host(one) for one in params], np.bool_)
        if is_host.all():
            return self._host_only(logits_BV, rows, params, positions)
        if not is_host.any():
            token_ids_B, is_usable_B = sampler.sample(logits_BV, params, positions)
            return Chosen(token_ids_B=token_ids_B, is_usable_B=is_usable_B)
        host, own = np.flatnonzero(is_host), np.flatnonzero(~is_host)
        place_of = {b: place for place, b in enumerate(host.tolist())}
        own_B, host_B = (torch.from_numpy(b).to(logits_BV.device) for b in (own, host))
        own_ids, own_usable = sampler.sample(logits_BV[own_B], [params[b] for b in own.tolist()], positions[own])
        sampled, failures, forced = self._sample(
            logits_BV[host_B].cpu(), [rows[b] for b in place_of], [params[b] for b in place_of], positions[host]
        )
        token_ids_B, is_usable_B = (x.new_empty(len(rows)) for x in (own_ids, own_usable))
        token_ids_B[own_B], is_usable_B[own_B] = own_ids, own_usable
        token_ids_B[host_B] = torch.from_numpy(sampled.token_ids).to(logits_BV.device)
        is_usable_B[host_B] = torch.from_numpy(sampled.is_usable).to(logits_BV.device)
        logprobs = tuple(sampled.logprobs[place_of[b]] if b in place_of else b"" for b in range(len(rows)))
        return Chosen(
            token_ids_B=token_ids_B,
            is_usable_B=is_usable_B,
            logprobs=logprobs if sampled.logprobs else (),
            failures=failures,
            forced=forced,
        )

    def _host_only(
        self, logits_BV: Tensor, rows: Sequence[int], params: Sequence[SamplingParams], positions: NDArray[np.int64]
    ) -> Chosen:
        sampled, failures, forced = self._sample(logits_BV.cpu(), rows, params, positions)
        return Chosen(
            token_ids_B=torch.from_numpy(sampled.token_ids).to(logits_BV.device),
            is_usable_B=torch.from_numpy(sampled.is_usable).to(logits_BV.device),
            logprobs=sampled.logprobs,
            failures=failures,
            forced=forced,
        )

    def _sample(
        self, logits_BV: Tensor, rows: Sequence[int], params: Sequence[SamplingParams], positions: NDArray[np.int64]
    ) -> tuple[Sampled, dict[int, str], dict[int, list[int]]]:
        """The tokens, why rows can't go on, and what is forced behind their tokens, by row."""
        changed_BV, failures = self._grammars.applied(self._rules.applied(logits_BV, rows, positions), rows, positions)
        sampled = sample(changed_BV, params, positions, raw_logits_BV=logits_BV, kernels=self._kernels)
        open_places = self._grammars.open_places(rows, positions)
        open_rows, token_ids = [rows[b] for b in open_places], sampled.token_ids[open_places]
        self._rules.note(open_rows, token_ids)
        forced = self._grammars.note(open_rows, token_ids, positions[open_places])
        for row, forced_ids in forced.items():
            self._rules.note([row] * len(forced_ids), np.array(forced_ids, np.int64))
        return sampled, failures, forced


def _needs_host(params: SamplingParams) -> bool:
    return bool(
        params.num_top_logprobs is not None
        or params.has_penalties
        or params.logit_bias
        or params.min_new_tokens
        or params.grammar is not None
    )
