"""The histograms that a tokenizer keeps: what is counted under which names, and the bounds of the buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ReuseClass = Literal["hit", "partial", "miss"]
REUSE_CLASSES: tuple[ReuseClass, ...] = ("hit", "partial", "miss")

_FIRST_TOKEN_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_TOKEN_S = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.8, 2, 4, 8)
_REQUEST_S = (0.1, 0.2, 0.4, 0.8, 1, 2, 5, 10, 20, 40, 60, 100, 200, 400, 800, 1200, 2400)
_QUEUE_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600)
_LENGTH_TOKENS = (1, 10, 30, 100, 300, 1000, 3000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """A histogram: `source` is its name inside the program, and `label` what splits it, if anything does.

    Under the names in `also` it is not split.
    """

    name: str
    text: str
    source: str
    bounds: tuple[float, ...]
    label: str | None = None
    label_values: tuple[str, ...] = ("",)
    also: tuple[str, ...] = ()


HISTOGRAMS: tuple[Histogram, ...] = (
    Histogram(
        name="axil_time_to_first_token_seconds",
        text="From a request's arrival to its first token. By `reuse`: a hit is a request of whose prompt at least 0.9 "
        "was cached, a miss one with less than 0.1, partial the rest. What ends before its first token isn't counted.",
        source="time_to_first_token_s",
        bounds=_FIRST_TOKEN_S,
        label="reuse",
        label_values=REUSE_CLASSES,
        also=("sglang:time_to_first_token_seconds", "vllm:time_to_first_token_seconds"),
    ),
    Histogram(
        name="axil_inter_token_latency_seconds",
        text="Between two tokens of an answer; of several that came at once, each has its share.",
        source="inter_token_latency_s",
        bounds=_TOKEN_S,
        also=("sglang:inter_token_latency_seconds", "vllm:inter_token_latency_seconds"),
    ),
    Histogram(
        name="axil_e2e_request_latency_seconds",
        text="From a request's arrival to the end of its answer.",
        source="request_latency_s",
        bounds=_REQUEST_S,
        also=("sglang:e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"),
    ),
    Histogram(
        name="axil_queue_time_seconds",
        text="From a request's arrival at the scheduler to its first row.",
        source="queue_s",
        bounds=_QUEUE_S,
        also=("sglang:queue_time_seconds", "vllm:request_queue_time_seconds"),
    ),
    Histogram(
        name="axil_prompt_length_tokens",
        text="Tokens of a prompt.",
        source="prompt_tokens",
        bounds=_LENGTH_TOKENS,
        also=("sglang:prompt_tokens_histogram",),
    ),
    Histogram(
        name="axil_uncached_length_tokens",
        text="Tokens of a prompt that were not cached at its first scheduling.",
        source="uncached_tokens",
        bounds=_LENGTH_TOKENS,
        also=("sglang:uncached_prompt_tokens_histogram",),
    ),
    Histogram(
        name="axil_output_length_tokens",
        text="Tokens of a whole answer.",
        source="output_tokens",
        bounds=_LENGTH_TOKENS,
        also=("sglang:generation_tokens_histogram",),
    ),
)
