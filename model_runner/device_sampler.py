"""Chooses tokens where their logits lie, without the host waiting. The same definition as the host's sampler.

All filters are joint: each looks at the distribution as the temperature left it, a token stays when all of them keep
it, and the token is where a uniform number, keyed by (seed, position), falls in what is left, in the order of token
ids. FlashInfer's own samplers are not used: their kernels take the first of the seeds for the whole batch and number
the streams by the place in it, so a request's text would depend on who shares its steps.
"""

# B sampled rows · R rows with a temperature · V vocabulary

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wire.sampling import SamplingParams

from .sampler import uniforms
from .staging import Staging


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What thins out rows of probabilities [R, V]: tokens to be left out become 0, the others any positive number.

    Both take one parameter per row: int32 for `top_k`, float32 for `top_p`.
    """

    top_k: Callable[[Tensor, Tensor], Tensor]
    top_p: Callable[[Tensor, Tensor], Tensor]


def flashinfer_filters() -> Filters:
    """FlashInfer's kernels, which sort nothing."""
    from flashinfer.sampling import top_k_renorm_probs, top_p_renorm_probs  # is there with the extra only

    return Filters(
        top_k=top_k_renorm_probs, top_p=lambda probs, top_p: top_p_renorm_probs(probs, top_p, is_deterministic=True)
    )


def sorting_filters() -> Filters:
    """The same in plain torch, at the price of sorting every row."""
    return Filters(top_k=_sorted_top_k, top_p=_sorted_top_p)


class DeviceSampler:
    """Greedy and random choice for the rows that need nothing of the host."""

    def __init__(self, device: torch.device, filters: Filters) -> None:
        self._staging = Staging(device)
        self._filters = filters

    def sample(
        self, logits_BV: Tensor, params: Sequence[SamplingParams], positions: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        """Token ids [B], and whether each row's logits were usable; the token of a row that wasn't is 0."""
        token_ids_B = logits_BV.argmax(dim=-1)
        is_usable_B = logits_BV.gather(1, token_ids_B[:, None]).squeeze(1).isfinite()
        drawn = np.array([b for b, one in enumerate(params) if not one.is_greedy], np.int64)
        if len(drawn):
            with self._staging.step():
                self._draw(logits_BV, token_ids_B, drawn, [params[b] for b in drawn.tolist()], positions[drawn])
        return token_ids_B.masked_fill_(~is_usable_B, 0), is_usable_B

    def _draw(
        self,
        logits_BV: Tensor,
        token_ids_B: Tensor,
        drawn: NDArray[np.int64],
        params: Sequence[SamplingParams],
        positions: NDArray[np.int64],
    ) -> None:
        """Put random tokens in place of the most likely ones."""
        uniform = uniforms(np.array([one.seed or 0 for one in params], np.int64), positions)
        drawn_R, uniform_R = self._staging.device(drawn), self._staging.device(uniform)
        temperature_R = self._column([one.temperature for one in params])
        probs_RV = torch.softmax(logits_BV.index_select(0, drawn_R) / temperature_R[:, None], dim=-1)
        weights_RV = probs_RV
        if any(one.top_k is not None for one in params):
            size = logits_BV.shape[1]
            top_k = np.array([min(one.top_k or size, size) for one in params], np.int32)
            weights_RV = _where_kept(weights_RV, self._filters.top_k(probs_RV, self._staging.device(top_k)))
        if any(one.top_p < 1 for one in params):
            top_p_R = self._column([one.top_p for one in params])
            kept_RV = self._filters.top_p(probs_RV, top_p_R)
            weights_RV = torch.where((top_p_R >= 1)[:, None], weights_RV, _where_kept(weights_RV, kept_RV))
        if any(one.min_p > 0 for one in params):
            least_R1 = self._column([one.min_p for one in params])[:, None] * probs_RV.amax(dim=-1, keepdim=True)
            weights_RV = weights_RV * (probs_RV >= least_R1)
        token_ids_B.index_copy_(0, drawn_R, _invert(weights_RV, uniform_R))

    def _column(self, values: Sequence[float]) -> Tensor:
        return self._staging.device(np.array(values, np.float32))


def _where_kept(weights_RV: Tensor, kept_RV: Tensor) -> Tensor:
    return torch.where(kept_RV > 0, weights_RV, 0)


def _invert(weights_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Where the cumulated weights pass `uniform` of their sum; a token of weight 0 is never taken."""
    cumulated_RV = weights_RV.double().cumsum(dim=-1)
    whole_R1 = cumulated_RV[:, -1:]
    # A product that rounds up to the whole sum must still find the last token with a weight.
    threshold_R1 = torch.minimum(uniform_R[:, None] * whole_R1, torch.nextafter(whole_R1, torch.zeros_like(whole_R1)))
    found_R = torch.searchsorted(cumulated_RV, threshold_R1, right=True).squeeze(1)
    return found_R.clamp_(max=weights_RV.shape[1] - 1)


def _sorted_top_k(probs_RV: Tensor, top_k_R: Tensor) -> Tensor:
    values_RV, ids_RV = probs_RV.sort(dim=-1, descending=True, stable=True)
    is_kept_RV = torch.arange(probs_RV.shape[1], device=probs_RV.device) < top_k_R[:, None]
    return torch.zeros_like(probs_RV).scatter_(1, ids_RV, values_RV * is_kept_RV)


def _sorted_top_p(probs_RV: Tensor, top_p_R: Tensor) -> Tensor:
    values_RV, ids_RV = probs_RV.sort(dim=-1, descending=True, stable=True)
    before_RV = values_RV.double().cumsum(dim=-1) - values_RV
    is_kept_RV = before_RV < top_p_R[:, None]
    is_kept_RV[:, 0] = True
    return torch.zeros_like(probs_RV).scatter_(1, ids_RV, values_RV * is_kept_RV)
