"""What Prometheus reads: the scheduler's `Stats`, and what the tokenizers count, each under all names that it goes by.

The only package that knows Prometheus. Every series has the label `model_name`, and our own of tokens have no other, so
that a hit rate is `axil_cached_tokens_total / axil_prompt_tokens_total`. `docs/metrics.md` is generated of the tables.
"""

from __future__ import annotations

from .counted import Figures, Metrics, RequestMetrics
from .exposition import CONTENT_TYPE, exposition
from .series import Readings
from .table import used_tokens

__all__ = ["CONTENT_TYPE", "Figures", "Metrics", "Readings", "RequestMetrics", "exposition", "used_tokens"]
