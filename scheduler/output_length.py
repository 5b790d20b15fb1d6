"""How long outputs get, learned as requests end, per namespace and in bounded memory. Knows no requests and no pages.

Ends are counted in bins of equal ratio, with decay, and read as a Kaplan-Meier estimate ("Nonparametric estimation from
incomplete observations", 1958): a request that was cut off, by its limit or by its client, counts as one that was still
going on there, so it says nothing of where it would have ended.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

QUANTILE = 0.7
"""Share of outputs that are expected to be no longer than what is planned for. A retraction costs less than memory that
stands idle, since computed pages stay cached; but every retraction costs, so it's more than one half."""

MAX_NAMESPACES = 256
"""Namespaces remembered; beyond it the one that has not been asked about for longest is forgotten."""

_BINS_PER_OCTAVE = 8
_NUM_BINS = 20 * _BINS_PER_OCTAVE
_MEMORY = 1 - 1 / 256
"""What each observation leaves of the weight of those before it."""

_MOST_WEIGHT = 1e100

_PRIOR_WEIGHT = 4.0
"""Observations that the prior is worth."""

_PRIOR_MEDIAN_TOKENS = 128.0
_STALE_SHARE = 1 / 16
"""Share of new observations at which the table of quantiles is made again."""

Weights = npt.NDArray[np.float64]

_LAST_TOKENS: Weights = np.exp2(np.arange(1, _NUM_BINS + 1) / _BINS_PER_OCTAVE)
"""The upper end of each bin, in tokens."""


_BOUNDS: list[float] = _LAST_TOKENS[:-1].tolist()


def _bin_of(num_tokens: int) -> int:
    """The bin that holds a length.

    >>> [_bin_of(n) for n in (0, 1, 2, 3, 1 << 30)]
    [0, 0, 7, 12, 159]
    """
    return bisect_left(_BOUNDS, num_tokens)


@dataclass(slots=True)
class Lengths:
    """Weights of the outputs that ended in each bin, and of those that were cut off there.

    One more output weighs `latest`, which grows instead of all others' weights shrinking; `weight` counts in its units.
    """

    ended: Weights = field(default_factory=lambda: np.zeros(_NUM_BINS))
    cut: Weights = field(default_factory=lambda: np.zeros(_NUM_BINS))
    latest: float = 1.0
    weight: float = 0.0

    def observe(self, output_tokens: int, *, is_cut: bool) -> None:
        """Learn from one output. O(1)."""
        self.latest /= _MEMORY
        self.weight = self.weight * _MEMORY + 1.0
        (self.cut if is_cut else self.ended)[_bin_of(output_tokens)] += self.latest
        if self.latest > _MOST_WEIGHT:
            self.ended /= self.latest
            self.cut /= self.latest
            self.latest = 1.0

    def with_prior(self, prior: Lengths) -> Lengths:
        """These and `_PRIOR_WEIGHT` observations in the proportions of `prior`."""
        own, share = 1 / self.latest, _PRIOR_WEIGHT / (prior.weight * prior.latest)
        ended, cut = own * self.ended + share * prior.ended, own * self.cut + share * prior.cut
        return Lengths(ended, cut, weight=self.weight + _PRIOR_WEIGHT)

    def quantiles(self) -> list[int]:
        """For each bin: the length that `QUANTILE` of the outputs that get as far as that bin don't exceed."""
        total = self.ended + self.cut
        at_risk = np.cumsum(total[::-1])[::-1]
        hazard = np.divide(self.ended, at_risk, out=np.zeros(_NUM_BINS), where=at_risk > 0)
        with np.errstate(divide="ignore"):
            passed = np.cumsum(-np.log1p(-hazard))
        before = np.concatenate(([0.0], passed[:-1]))
        found = np.searchsorted(passed, before - math.log1p(-QUANTILE))
        found = np.clip(found, np.arange(_NUM_BINS), _NUM_BINS - 1)
        return [math.floor(tokens) for tokens in _LAST_TOKENS[found].tolist()]


def _scale_free() -> Lengths:
    """What is believed before anything was seen: half of what gets to `n` tokens goes on for `n` + the median more."""
    survives = _PRIOR_MEDIAN_TOKENS / (_PRIOR_MEDIAN_TOKENS + np.concatenate(([0.0], _LAST_TOKENS)))
    cut = np.zeros(_NUM_BINS)
    cut[-1] = survives[-1]
    return Lengths(survives[:-1] - survives[1:], cut, weight=1.0)


@dataclass(slots=True)
class Estimate:
    """One namespace's lengths with the table of quantiles made from them, and the number of those that came since."""

    lengths: Lengths
    quantiles: list[int]
    num_new: int = 0

    def expected_tokens(self, *, output_tokens: int, max_new_tokens: int, num_retractions: int) -> int:
        """The whole length to plan for when `output_tokens` have come, at most `max_new_tokens`. O(1).

        What is still to come is doubled with every retraction, so that none is readmitted in vain.
        """
        more = self.quantiles[bisect_left(_BOUNDS, output_tokens)] - output_tokens
        if more < 1:
            more = 1
        expected = output_tokens + (more << num_retractions if num_retractions else more)
        return expected if expected < max_new_tokens else max_new_tokens


@dataclass(slots=True)
class OutputLength:
    """Expected output lengths per namespace; one that is new begins with what all together have shown."""

    _all: Lengths = field(default_factory=Lengths)
    _estimates: OrderedDict[Hashable, Estimate] = field(default_factory=OrderedDict)

    def observe(self, namespace: Hashable, output_tokens: int, *, is_cut: bool) -> None:
        """Learn from one output: `is_cut` when it would have gone on."""
        self._all.observe(output_tokens, is_cut=is_cut)
        estimate = self.of(namespace)
        estimate.lengths.observe(output_tokens, is_cut=is_cut)
        estimate.num_new += 1
        if estimate.num_new > _STALE_SHARE * estimate.lengths.weight:
            estimate.quantiles = estimate.lengths.with_prior(self._prior()).quantiles()
            estimate.num_new = 0

    def of(self, namespace: Hashable) -> Estimate:
        """The estimate of a namespace; it goes on learning for as long as it is among those remembered."""
        estimate = self._estimates.get(namespace)
        if estimate is None:
            if len(self._estimates) >= MAX_NAMESPACES:
                self._estimates.popitem(last=False)
            estimate = self._estimates[namespace] = Estimate(Lengths(), self._prior().quantiles())
        else:
            self._estimates.move_to_end(namespace)
        return estimate

    def _prior(self) -> Lengths:
        return self._all.with_prior(_scale_free())
