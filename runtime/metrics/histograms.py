"""The histograms that a tokenizer keeps, by their names inside the program, and the bounds of their buckets."""

from __future__ import annotations

from collections.abc import Mapping

_REQUEST_S = (0.1, 0.2, 0.4, 0.8, 1, 2, 5, 10, 20, 40, 60, 100, 200, 400, 800, 1200, 2400)
_LENGTH_TOKENS = (1, 10, 30, 100, 300, 1000, 3000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)

BOUNDS: Mapping[str, tuple[float, ...]] = {
    "time_to_first_token_s": (
        *(0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400),
    ),
    "inter_token_latency_s": (
        *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.8, 2, 4, 8),
    ),
    "request_latency_s": _REQUEST_S,
    "queue_s": (0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600),
    "prompt_tokens": _LENGTH_TOKENS,
    "uncached_tokens": _LENGTH_TOKENS,
    "output_tokens": _LENGTH_TOKENS,
}
