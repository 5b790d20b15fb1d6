"""Logprobs that requests ask for: of given tokens, of the most likely ones, of chosen ids. Knows no sampling.

All are of the model's own distribution: raw logits, before penalties, bias and temperature.
"""

# B rows · V vocabulary · N tokens of a slice of a prompt

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wire.messages.encoding import pack_logprobs
from wire.messages.from_runner import PromptLogprobs
from wire.messages.to_runner import Admission
from wire.sampling import SamplingParams

from .batch import BatchPlan
from .kernels.sampler import SamplerKernels

_SLICE_TOKENS = 64
"""Prompt tokens whose logits are held at once."""


def pack_rows(
    logits_BV: Tensor,
    token_ids: Tensor,
    params: Sequence[SamplingParams],
    kernels: SamplerKernels | None = None,
) -> list[bytes]:
    """One entry per row: the token's logprob, the most likely ones, then those of `logprob_ids`."""
    num_top = max(one.num_top_logprobs or 0 for one in params)
    if kernels is None:
        log_mass = logits_BV.logsumexp(dim=-1, keepdim=True)
        values, ids = logits_BV.topk(min(num_top, logits_BV.shape[1]), dim=-1)
    else:
        log_mass, values, ids = kernels.top(logits_BV, num_top)
    own = (logits_BV.gather(1, token_ids[:, None]) - log_mass).squeeze(1).tolist()
    top_ids, top_logprobs = ids.tolist(), (values - log_mass).tolist()
    entries = []
    for b, one in enumerate(params):
        n = one.num_top_logprobs or 0
        pairs = list(zip(top_ids[b][:n], top_logprobs[b][:n], strict=True))
        if one.logprob_ids:
            chosen = logits_BV[b, list(one.logprob_ids)] - log_mass[b]
            pairs += zip(one.logprob_ids, chosen.tolist(), strict=True)
        entries.append(pack_logprobs(own[b], pairs))
    return entries


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A live row's prompt, and the first position in it whose logprob is wanted."""

    prompt_ids: NDArray[np.int64]
    first: int
    sampling: SamplingParams


class PromptScorer:
    """Gives the logprobs of prompt tokens as their chunks are computed, for the live rows that want them."""

    def __init__(self) -> None:
        self._wanted: dict[int, _Wanted] = {}

    def admit(self, admission: Admission) -> None:
        """Begin a row."""
        if admission.first_logprob is not None:
            prompt_ids = np.frombuffer(admission.prompt_ids, "<i4").astype(np.int64)
            self._wanted[admission.row] = _Wanted(prompt_ids, admission.first_logprob, admission.sampling)

    def release(self, row: int) -> None:
        """End a row."""
        self._wanted.pop(row, None)

    def score(
        self, batch: BatchPlan, hidden_TD: Tensor, logits: Callable[[Tensor], Tensor]
    ) -> tuple[tuple[PromptLogprobs, ...], tuple[int, ...]]:
        """The logprobs that this step's tokens give of the tokens behind them, and the rows where one is no number."""
        scored, broken = [], []
        for b, row in enumerate(batch.rows.tolist()) if self._wanted else ():
            wanted = self._wanted.get(row)
            if wanted is None:
                continue
            first = max(int(batch.prefix_lens[b]) + 1, wanted.first)
            stop = min(int(batch.kv_lens[b]) + 1, len(wanted.prompt_ids))
            if first >= stop:
                continue
            behind = int(batch.qo_indptr[b]) - 1 - int(batch.prefix_lens[b])
            entries: list[bytes] = []
            is_usable = True
            for start in range(first, stop, _SLICE_TOKENS):
                end = min(start + _SLICE_TOKENS, stop)
                # Also behind an unusable slice: all ranks call for the same ones, and only the first sees what comes.
                logits_NV = logits(hidden_TD[behind + start : behind + end])
                is_usable = is_usable and bool(logits_NV.amax(dim=-1).isfinite().all())
                if is_usable:
                    targets = torch.from_numpy(wanted.prompt_ids[start:end])
                    entries += pack_rows(logits_NV, targets, [wanted.sampling] * (end - start))
            if not is_usable:
                broken.append(row)
            scored.append(PromptLogprobs(row=row, first=first, num_tokens=len(entries), entries=b"".join(entries)))
        return tuple(scored), tuple(broken)
