"""Chooses the next tokens of a batch from its logits. Knows no model and no scheduler.

Each row's choice depends on its own logits, parameters and (seed, position) only, never on the batch.
"""

# B sampled rows · V vocabulary · C candidates, most likely first

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wire.sampling import SamplingParams

from .kernels.sampler import SamplerKernels
from .logprobs import pack_rows

NUM_CANDIDATES = 256
"""Candidates looked at before a whole row is sorted."""

_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One token per row, one logprob entry per row if any was asked, and which rows have usable logits."""

    token_ids: NDArray[np.int64]
    logprobs: tuple[bytes, ...]
    is_usable: NDArray[np.bool_]


def sample(
    logits_BV: Tensor,
    params: Sequence[SamplingParams],
    positions: NDArray[np.int64],
    *,
    raw_logits_BV: Tensor | None = None,
    kernels: SamplerKernels | None = None,
) -> Sampled:
    """Choose a token for every row of float32 logits; `positions` are where the tokens will stand.

    Logprobs are those of `raw_logits_BV`, the model's own, where `logits_BV` have been changed since. With `kernels`
    the same is done in C++.
    """
    if kernels is None:
        chosen_B, is_usable = _choose(logits_BV, params, positions)
        token_ids = chosen_B.numpy()
    else:
        token_ids = kernels.choose(logits_BV, params, positions)
        is_usable = token_ids >= 0
    token_ids[~is_usable] = 0
    raw_BV = logits_BV if raw_logits_BV is None else raw_logits_BV
    return Sampled(
        token_ids=token_ids,
        logprobs=_logprobs(raw_BV, token_ids, params, is_usable, kernels),
        is_usable=is_usable,
    )


def _choose(
    logits_BV: Tensor, params: Sequence[SamplingParams], positions: NDArray[np.int64]
) -> tuple[Tensor, NDArray[np.bool_]]:
    """Token ids, and which rows have usable logits."""
    # numpy's argmax is vectorised, torch's is not: 15 times the time.
    token_ids = torch.from_numpy(logits_BV.numpy().argmax(axis=-1))
    scales_B = torch.tensor([1.0 if one.is_greedy else one.temperature for one in params])
    is_usable = (logits_BV.gather(1, token_ids[:, None]).squeeze(1) / scales_B).isfinite().numpy()
    drawn = [b for b, one in enumerate(params) if not one.is_greedy and is_usable[b]]
    if drawn:
        own = [params[b] for b in drawn]
        seeds = np.array([one.seed or 0 for one in own], np.int64)
        logits = logits_BV if len(drawn) == len(params) else logits_BV[drawn]
        token_ids[drawn] = _draw(logits, own, uniforms(seeds, positions[drawn]))
    return token_ids, is_usable


def uniforms(seeds: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1) for every (seed, position): a counter-based generator of splitmix64's finaliser."""
    with np.errstate(over="ignore"):
        state = _mix(seeds.astype(np.uint64) + np.uint64(_GOLDEN))
        state = _mix(state ^ (positions.astype(np.uint64) * np.uint64(_GOLDEN)))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _draw(logits_BV: Tensor, params: Sequence[SamplingParams], uniform: NDArray[np.float64]) -> Tensor:
    temperatures = torch.tensor([one.temperature for one in params])
    scaled_BV = logits_BV / temperatures[:, None]
    uniform_B = torch.from_numpy(uniform)
    token_ids = torch.empty(len(params), dtype=torch.int64)
    whole = [b for b, one in enumerate(params) if _keeps_all(one)]
    if whole:
        weights_BV = torch.softmax(scaled_BV[whole], dim=-1)
        token_ids[whole] = _invert(weights_BV, uniform_B[whole])
    cut = [b for b, one in enumerate(params) if not _keeps_all(one)]
    if cut:
        token_ids[cut] = _draw_cut(scaled_BV[cut], [params[b] for b in cut], uniform_B[cut])
    return token_ids


def _keeps_all(params: SamplingParams) -> bool:
    return params.top_k is None and params.top_p >= 1 and params.min_p <= 0


def _draw_cut(scaled_BV: Tensor, params: Sequence[SamplingParams], uniform_B: Tensor) -> Tensor:
    """Draw among the tokens that top_k, top_p and min_p leave; each of them keeps a head of the sorted tokens."""
    log_mass_B1 = scaled_BV.logsumexp(dim=-1, keepdim=True)
    num_candidates = min(NUM_CANDIDATES, scaled_BV.shape[1])
    top = scaled_BV.topk(num_candidates, dim=-1)
    token_ids, is_exact = _draw_sorted(top.values, top.indices, log_mass_B1, params, uniform_B)
    for b in np.flatnonzero(~is_exact.numpy()).tolist() if num_candidates < scaled_BV.shape[1] else ():
        row = slice(b, b + 1)
        values, ids = scaled_BV[row].sort(dim=-1, descending=True, stable=True)
        token_ids[row], _ = _draw_sorted(values, ids, log_mass_B1[row], params[row], uniform_B[row])
    return token_ids


def _draw_sorted(
    values_BC: Tensor, ids_BC: Tensor, log_mass_B1: Tensor, params: Sequence[SamplingParams], uniform_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Drawn ids, and whether the survivors end before the candidates do."""
    num_candidates = values_BC.shape[1]
    top_k = torch.tensor([min(one.top_k or num_candidates + 1, num_candidates + 1) for one in params])
    top_p = torch.tensor([one.top_p for one in params], dtype=torch.float64)
    min_p = torch.tensor([one.min_p for one in params], dtype=torch.float64)
    weights_BC = (values_BC - log_mass_B1).double().exp()
    before_BC = weights_BC.cumsum(dim=-1) - weights_BC
    is_kept_BC = (before_BC < top_p[:, None]) | (top_p[:, None] >= 1)
    is_kept_BC &= weights_BC >= min_p[:, None] * weights_BC[:, :1]
    is_kept_BC &= torch.arange(num_candidates) < top_k[:, None]
    is_kept_BC[:, 0] = True
    is_exact = ~is_kept_BC[:, -1] | (top_k <= num_candidates)
    chosen = _invert(weights_BC.masked_fill_(~is_kept_BC, 0), uniform_B)
    return ids_BC.gather(1, chosen[:, None]).squeeze(1), is_exact


def _invert(weights_BC: Tensor, uniform_B: Tensor) -> Tensor:
    """Index where the cumulated weights pass `uniform` of their sum; one of weight 0 is never taken."""
    cumulated_BC = weights_BC.double().cumsum(dim=-1)
    threshold_B1 = uniform_B[:, None] * cumulated_BC[:, -1:]
    # A product that rounds up to the whole sum must still find the last token with a weight.
    below_sum_B1 = torch.nextafter(cumulated_BC[:, -1:], torch.zeros((), dtype=torch.float64))
    return torch.searchsorted(cumulated_BC, torch.minimum(threshold_B1, below_sum_B1), right=True).squeeze(1)


def _logprobs(
    logits_BV: Tensor,
    token_ids: NDArray[np.int64],
    params: Sequence[SamplingParams],
    is_usable: NDArray[np.bool_],
    kernels: SamplerKernels | None,
) -> tuple[bytes, ...]:
    """Logprobs under the raw logits, before temperature: empty where none was asked, none at all if nobody asked."""
    asked = [b for b, one in enumerate(params) if one.num_top_logprobs is not None and is_usable[b]]
    if not asked:
        return ()
    entries = [b""] * len(params)
    packed = pack_rows(logits_BV[asked], torch.from_numpy(token_ids[asked]), [params[b] for b in asked], kernels)
    for b, entry in zip(asked, packed, strict=True):
        entries[b] = entry
    return tuple(entries)
