"""All series but the histograms: of which figure each is made, what it says, and its names for others' readers.

A counter or a gauge of the scheduler is one line here and a field of `Stats`. Under a foreign name stands only what
means the same there; where a label of theirs has one value here, it has that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from msgspec.structs import asdict

from wire.messages.to_tokenizer import Stats

from .misses import MISSES
from .series import Alias, Readings, Sample, Series


def _series(
    kind: Literal["counter", "gauge"],
    name: str,
    text: str,
    read: Callable[[Readings], float | None],
    also: Iterable[str | Alias] = (),
) -> Series:
    def samples(readings: Readings) -> list[Sample]:
        value = read(readings)
        return [] if value is None else [({}, value)]

    aliases = tuple(Alias(alias) if isinstance(alias, str) else alias for alias in also)
    return Series(name=name, kind=kind, text=text, samples=samples, also=aliases)


def _counter(name: str, text: str, read: Callable[[Stats], float], *also: str | Alias) -> Series:
    return _series("counter", name, text, lambda readings: read(readings.stats), also)


def _gauge(name: str, text: str, read: Callable[[Stats], float], *also: str | Alias) -> Series:
    return _series("gauge", name, text, lambda readings: read(readings.stats), also)


def _with(name: str, **labels: str) -> Alias:
    """A foreign name whose readers expect these labels."""
    return Alias(name, lambda own: {**own, **labels})


def _used_pages(stats: Stats) -> int:
    return stats.num_pages - stats.free_pages - stats.evictable_pages


def used_tokens(stats: Stats) -> int:
    """Tokens of KV that can't be given away: running requests hold them, or they are quarantined."""
    return _used_pages(stats) * stats.page_tokens


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _answers(readings: Readings) -> list[Sample]:
    counts: Counter[tuple[str, str, int]] = Counter()
    for figures in readings.figures:
        counts.update({(route, method, status): count for route, method, status, count in figures.answers})
    return [
        ({"route": route, "method": method, "status": str(status)}, count)
        for (route, method, status), count in counts.items()
    ]


def _lost(readings: Readings) -> list[Sample]:
    lost = readings.stats.lost
    return [] if lost is None else [({"owner": owner}, share) for owner, share in asdict(lost).items()]


def _normalised(readings: Readings) -> list[Sample]:
    counts: Counter[str] = Counter()
    for figures in readings.figures:
        counts.update(figures.normalised)
    return [({"change": change}, count) for change, count in counts.items()]


def _sglang_answer(own: Mapping[str, str]) -> dict[str, str]:
    return {"endpoint": own["route"], "method": own["method"], "status_code": own["status"]}


def _cache_config(readings: Readings) -> list[Sample]:
    stats = readings.stats
    return [({"block_size": str(stats.page_tokens), "num_gpu_blocks": str(stats.num_pages)}, 1.0)]


_LOAD = (
    _gauge(
        "axil_running_requests",
        "Requests that have a row now: their prompt is being computed, or they get a token in each step.",
        lambda stats: stats.num_running,
        "sglang:num_running_reqs",
        "vllm:num_requests_running",
    ),
    _gauge(
        "axil_waiting_requests",
        "Requests in the queue now, those that were retracted into it included.",
        lambda stats: stats.num_waiting,
        "sglang:num_queue_reqs",
        "vllm:num_requests_waiting",
    ),
    _gauge(
        "axil_pending_prompt_tokens",
        "Prompt tokens still to be computed, of waiting and running requests; what several share counts once.",
        lambda stats: stats.pending_tokens,
    ),
    _gauge(
        "axil_max_running_requests",
        "Requests that can have a row at once (--max-running).",
        lambda stats: stats.max_running,
    ),
    _gauge(
        "axil_row_usage_ratio",
        "Part of the rows that are taken.",
        lambda stats: _share(stats.num_running, stats.max_running),
        "sglang:utilization",
    ),
    _gauge(
        "axil_oldest_wait_seconds",
        "How long the request that came first of those in the queue has been in the server; 0 when none waits.",
        lambda stats: stats.oldest_wait_s,
    ),
    _gauge(
        "axil_worst_wait_seconds",
        "The longest that a request has waited for its first row, since the start. Those that wait now don't count.",
        lambda stats: stats.worst_wait_s,
    ),
    _gauge(
        "axil_worst_displacement_tokens",
        "The most prompt tokens of later requests that went before a waiting one, since the start; counted when the "
        "overtaken one gets its row.",
        lambda stats: stats.worst_displacement_tokens,
    ),
    _series(
        "gauge",
        "axil_output_tokens_per_second",
        "Output tokens a second over the last second or so, of all requests together.",
        lambda readings: readings.highest("output_tokens_per_s"),
        ["sglang:gen_throughput"],
    ),
)

_POOL = (
    _gauge("axil_pages", "Pages of the KV pool.", lambda stats: stats.num_pages, "sglang:num_pages"),
    _gauge(
        "axil_page_tokens", "Tokens in one page (--page-tokens).", lambda stats: stats.page_tokens, "sglang:page_size"
    ),
    _gauge("axil_free_pages", "Pages that hold nothing.", lambda stats: stats.free_pages),
    _gauge("axil_cached_pages", "Pages in the tree, leased ones included.", lambda stats: stats.cached_pages),
    _gauge("axil_evictable_pages", "Pages in the tree that no request holds.", lambda stats: stats.evictable_pages),
    _gauge(
        "axil_quarantined_pages",
        "Pages that were taken out of use because the ledger contradicted itself about them; a defect of axil.",
        lambda stats: stats.quarantined_pages,
    ),
    _gauge(
        "axil_pool_tokens",
        "Tokens that the KV pool holds.",
        lambda stats: stats.num_pages * stats.page_tokens,
        "sglang:max_total_num_tokens",
    ),
    _gauge(
        "axil_used_tokens",
        "Tokens of the KV pool that can't be given away, because running requests hold them or they are quarantined.",
        used_tokens,
        "sglang:num_used_tokens",
        "sglang:kv_used_tokens",
    ),
    _gauge(
        "axil_available_tokens",
        "Tokens of the KV pool that hold nothing.",
        lambda stats: stats.free_pages * stats.page_tokens,
        "sglang:kv_available_tokens",
    ),
    _gauge(
        "axil_evictable_tokens",
        "Tokens of the KV pool that are cached and that no request holds.",
        lambda stats: stats.evictable_pages * stats.page_tokens,
        "sglang:kv_evictable_tokens",
    ),
    _gauge(
        "axil_pool_usage_ratio",
        "Part of the KV pool that can't be given away; what is merely cached doesn't count.",
        lambda stats: _share(_used_pages(stats), stats.num_pages),
        "sglang:token_usage",
        "sglang:full_token_usage",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
    ),
    _gauge(
        "axil_context_tokens",
        "Tokens that prompt and output of one request may have together (--context-length).",
        lambda stats: stats.context_tokens,
        "sglang:context_len",
    ),
    _gauge("axil_vocabulary_tokens", "Size of the model's vocabulary.", lambda stats: stats.vocabulary),
    Series(
        name="vllm:cache_config_info",
        kind="gauge",
        text="Always 1; its labels say how the KV pool is cut, as vLLM's readers expect it.",
        samples=_cache_config,
        labels=("block_size", "num_gpu_blocks"),
    ),
)

_TOKENS = (
    _counter(
        "axil_prompt_tokens_total",
        "Prompt tokens of requests at their first scheduling, all of them: what the hit rate is divided by.",
        lambda stats: stats.prompt_tokens_total,
        "sglang:prompt_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:prefix_cache_queries_total",
    ),
    _counter(
        "axil_cached_tokens_total",
        "Those of the prompt tokens that were found cached at the first scheduling; what a retracted request finds "
        "when it comes in again doesn't count.",
        lambda stats: stats.cached_tokens_total,
        _with("sglang:cached_tokens_total", cache_source="device"),
        _with("sglang:realtime_tokens_total", mode="prefill_cache"),
        "vllm:prefix_cache_hits_total",
    ),
    _counter(
        "axil_copied_tokens_total",
        "Those of the cached tokens that came by copying a page in the middle of which two prompts part.",
        lambda stats: stats.copied_tokens_total,
    ),
    _counter(
        "axil_bypassed_tokens_total",
        "Prompt tokens that were cached but had to be computed, because their logprobs were asked for.",
        lambda stats: stats.bypassed_tokens_total,
    ),
    _counter(
        "axil_computed_tokens_total",
        "Tokens of prompts that the model has computed, those computed again after a retraction included.",
        lambda stats: stats.computed_tokens_total,
        _with("sglang:realtime_tokens_total", mode="prefill_compute"),
    ),
    _counter(
        "axil_output_tokens_total",
        "Tokens that were generated.",
        lambda stats: stats.output_tokens_total,
        "sglang:generation_tokens_total",
        "vllm:generation_tokens_total",
        _with("sglang:realtime_tokens_total", mode="decode"),
    ),
    _series(
        "gauge",
        "axil_recent_hit_rate_ratio",
        "Cached over all prompt tokens of the requests first scheduled in the last minute; absent when none was.",
        lambda readings: readings.hit_rate,
        ["sglang:cache_hit_rate"],
    ),
    Series(
        name="axil_lost_share_ratio",
        kind="gauge",
        text="Prompt tokens of the last ten minutes that were not found cached, as parts of all, by whose loss it is: "
        "workload, capacity, policy or restart (docs/report.md). Absent while nothing is known.",
        samples=_lost,
        labels=("owner",),
    ),
    _counter("axil_evicted_pages_total", "Cached pages given up for room.", lambda stats: stats.evicted_pages_total),
    _counter(
        "axil_evicted_tokens_total",
        "Tokens in the cached pages that were given up for room.",
        lambda stats: stats.evicted_pages_total * stats.page_tokens,
        "sglang:evicted_tokens_total",
    ),
)

_REQUESTS = (
    _counter(
        "axil_requests_total",
        "Requests that the scheduler has accepted; each answer of `n` is one.",
        lambda stats: stats.requests_total,
        "sglang:num_requests_total",
    ),
    _counter(
        "axil_refused_total",
        "Requests that the scheduler has refused, because they can never fit or too many wait.",
        lambda stats: stats.refused_total,
    ),
    _counter(
        "axil_cancelled_total",
        "Accepted requests that ended early: the client left, an operator aborted them, or they took too long.",
        lambda stats: stats.cancelled_total,
        "sglang:num_aborted_requests_total",
    ),
    _counter(
        "axil_broken_total",
        "Accepted requests that ended with an error, because the model gave no usable result.",
        lambda stats: stats.broken_total,
    ),
    _counter(
        "axil_retractions_total",
        "How often a running request went back to the queue because pages ran out.",
        lambda stats: stats.retractions_total,
        "sglang:num_retracted_requests_total",
        "vllm:num_preemptions_total",
    ),
    Series(
        name="axil_http_responses_total",
        kind="counter",
        text="HTTP answers by route, method and status; 499 is a client that went away.",
        samples=_answers,
        labels=("route", "method", "status"),
        also=(Alias("sglang:http_responses_total", _sglang_answer),),
    ),
    Series(
        name="axil_normalized_prompts_total",
        kind="counter",
        text="Prompts in which --drop-billing-headers or --sort-tools has changed something, by what.",
        samples=_normalised,
        labels=("change",),
    ),
    _series(
        "gauge",
        "axil_http_open_requests",
        "HTTP requests for generation under way, of all tokenizers.",
        lambda readings: readings.total("http_open_requests"),
    ),
)

_PROCESSES = (
    _counter("axil_steps_total", "Steps of the model that have retired.", lambda stats: stats.steps_total),
    _counter(
        "axil_runner_busy_seconds_total",
        "Time from taking a plan to its result, of the model runner. Its share of busy and idle time together is how "
        "well the scheduler keeps it fed.",
        lambda stats: stats.runner_busy_s_total,
    ),
    _counter(
        "axil_runner_idle_seconds_total",
        "Time that the model runner has waited for a plan while requests had rows; no other wait counts.",
        lambda stats: stats.runner_idle_s_total,
    ),
    _counter(
        "axil_scheduler_busy_seconds_total",
        "Time that the scheduler has worked; its rate is the part of a core that it takes.",
        lambda stats: stats.scheduler_busy_s_total,
    ),
    _counter(
        "axil_kv_event_messages_total",
        "Messages of KV events published (--kv-events). A subscriber that has seen fewer has missed some.",
        lambda stats: stats.kv_event_messages_total,
    ),
    _counter(
        "axil_ledger_mismatches_total",
        "Pages whose owner was not the expected one; they are quarantined. Anything but 0 is a defect of axil.",
        lambda stats: stats.ledger_mismatches_total,
    ),
    _series(
        "gauge",
        "axil_healthy",
        "1 while every tokenizer can serve, as /health says, draining aside; else 0, and other gauges may be old.",
        lambda readings: 1.0 - readings.highest("unhealthy"),
    ),
    _series(
        "gauge",
        "axil_stats_age_seconds",
        "How old the scheduler's figures are that this scrape shows; they come every second.",
        lambda readings: readings.highest("stats_age_s"),
    ),
    _series(
        "gauge",
        "axil_tokenizers",
        "Tokenizer processes whose figures are in this scrape (--tokenizer-workers).",
        lambda readings: len(readings.figures),
    ),
    _series(
        "gauge",
        "axil_draining",
        "Tokenizers that take no new work, because of /drain or a stop.",
        lambda readings: readings.total("draining"),
    ),
)

SERIES: tuple[Series, ...] = (*_LOAD, *_POOL, *_TOKENS, *MISSES, *_REQUESTS, *_PROCESSES)
