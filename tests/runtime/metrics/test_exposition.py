from __future__ import annotations

import msgspec
import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from runtime.metrics import Metrics, Readings, exposition
from tests.fakes import Script, Server
from wire.messages.to_tokenizer import Reuse, Stats

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
MODEL = frozenset({("model_name", "fake")})
STATS = Stats(
    num_running=3,
    num_waiting=2,
    max_running=8,
    num_pages=100,
    page_tokens=16,
    free_pages=40,
    cached_pages=50,
    evictable_pages=30,
    prompt_tokens_total=1000,
    cached_tokens_total=400,
    output_tokens_total=70,
    computed_tokens_total=600,
    evicted_pages_total=5,
    retractions_total=4,
)


def _metrics(**gauges: float) -> Metrics:
    names = ("http_open_requests", "draining", "unhealthy", "stats_age_s", "output_tokens_per_s")
    return Metrics({name: lambda name=name: gauges.get(name, 0.0) for name in names})  # type: ignore[misc]


def _samples(stats: Stats, *tokenizers: Metrics, hit_rate: float | None = None) -> Samples:
    figures = [metrics.figures() for metrics in tokenizers or (_metrics(),)]
    text = exposition(Readings(stats, figures, hit_rate), model_name="fake").decode()
    return _parsed(text)


def _parsed(text: str) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in samples, f"{key} is there twice"
            samples[key] = sample.value
    return samples


async def _scraped(http: ClientSession) -> Samples:
    async with http.get("/metrics") as response:
        assert response.status == 200
        return _parsed(await response.text())


async def test_hits_and_queries_have_the_same_labels(server: Server, http: ClientSession) -> None:
    samples = await _scraped(http)
    for cached, prompt in (
        ("axil_cached_tokens_total", "axil_prompt_tokens_total"),
        ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ):
        assert samples[cached, MODEL] / samples[prompt, MODEL] == 0.4


def test_gateways_find_what_they_read_of_vllm() -> None:
    samples = _samples(STATS)
    assert samples["vllm:num_requests_running", MODEL] == 3
    assert samples["vllm:num_requests_waiting", MODEL] == 2
    # 100 pages, of which 40 are free and 30 merely cached
    assert samples["vllm:kv_cache_usage_perc", MODEL] == samples["vllm:gpu_cache_usage_perc", MODEL] == 0.3
    shape = MODEL | {("block_size", "16"), ("num_gpu_blocks", "100")}
    assert samples["vllm:cache_config_info", shape] == 1
    assert samples["vllm:prefix_cache_hits_total", MODEL] == 400


def test_dashboards_of_sglang_find_their_names_and_labels() -> None:
    samples = _samples(STATS, hit_rate=0.25)
    for name, value in (
        ("num_running_reqs", 3),
        ("num_queue_reqs", 2),
        ("num_used_tokens", 480),
        ("token_usage", 0.3),
        ("max_total_num_tokens", 1600),
        ("kv_evictable_tokens", 480),
        ("kv_available_tokens", 640),
        ("prompt_tokens_total", 1000),
        ("generation_tokens_total", 70),
        ("evicted_tokens_total", 80),
        ("num_retracted_requests_total", 4),
        ("cache_hit_rate", 0.25),
    ):
        assert samples[f"sglang:{name}", MODEL] == value, name
    assert samples["sglang:cached_tokens_total", MODEL | {("cache_source", "device")}] == 400
    for mode, value in (("prefill_cache", 400), ("prefill_compute", 600), ("decode", 70)):
        assert samples["sglang:realtime_tokens_total", MODEL | {("mode", mode)}] == value


def test_a_hit_rate_of_nothing_is_not_shown() -> None:
    names = {name for name, _ in _samples(STATS, hit_rate=None)}
    assert "axil_recent_hit_rate_ratio" not in names
    assert "axil_recent_hit_rate_ratio" in {name for name, _ in _samples(STATS, hit_rate=0.0)}


@pytest.mark.parametrize(
    "field", [field for field in msgspec.structs.fields(Stats) if field.type in (int, float, float | None)]
)
def test_every_figure_of_the_scheduler_is_in_a_series(field: msgspec.structs.FieldInfo) -> None:
    changed = msgspec.structs.replace(STATS, **{field.name: 77})
    assert _samples(changed) != _samples(STATS), (
        f"Stats.{field.name} is in no series; add one to runtime/metrics/table.py"
    )


def test_every_series_has_a_help_text_of_its_own() -> None:
    text = exposition(Readings(STATS, [_metrics().figures()], 0.5), model_name="fake").decode()
    families = list(text_string_to_metric_families(text))
    ours = [family.documentation for family in families if family.name.startswith("axil_")]
    assert len(ours) == len(set(ours)) > 40
    assert all(len(family.documentation) > 15 and family.documentation.endswith(".") for family in families)


async def test_times_to_the_first_token_are_split_by_what_was_cached(server: Server, http: ClientSession) -> None:
    cached = {"all": 20, "most": 18, "half": 10, "little": 2, "hardly": 1, "none": 0}
    server.scheduler.script = lambda submit: Script(cached_tokens=cached[submit.request_id])
    for rid in cached:
        async with http.post("/generate", json={"input_ids": [7] * 20, "rid": rid}) as response:
            assert response.status == 200
    samples = await _scraped(http)
    for reuse, count in (("hit", 2), ("partial", 2), ("miss", 2)):
        assert samples["axil_time_to_first_token_seconds_count", MODEL | {("reuse", reuse)}] == count
    assert samples["sglang:time_to_first_token_seconds_count", MODEL] == 6
    assert samples["axil_prompt_length_tokens_sum", MODEL] == 120
    assert samples["axil_uncached_length_tokens_sum", MODEL] == 120 - sum(cached.values())
    assert samples["axil_queue_time_seconds_sum", MODEL] == pytest.approx(0.006)
    assert samples["axil_output_length_tokens_sum", MODEL] == 6 * len("hello world")


async def test_a_request_is_counted_once_in_each_histogram(server: Server, http: ClientSession) -> None:
    async with http.post("/generate", json={"text": "x"}) as response:
        assert response.status == 200
    async with http.post("/generate", json={"text": ""}) as response:
        assert response.status == 400
    samples = await _scraped(http)
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "queue_time_seconds"):
        assert samples[f"sglang:{name}_count", MODEL] == 1, name
    for status in ("200", "400"):
        labels = MODEL | {("route", "/generate"), ("method", "POST"), ("status", status)}
        assert samples["axil_http_responses_total", labels] == 1
        theirs = MODEL | {("endpoint", "/generate"), ("method", "POST"), ("status_code", status)}
        assert samples["sglang:http_responses_total", theirs] == 1


async def test_a_client_can_not_make_series_of_its_own(server: Server, http: ClientSession) -> None:
    for i, method in enumerate(("PROPFIND", "LOCK", "UNLOCK")):
        async with http.request(method, f"/nowhere{i}") as response:
            assert response.status == 404
    samples = await _scraped(http)
    labels = MODEL | {("route", "unknown"), ("method", "other"), ("status", "404")}
    assert samples["axil_http_responses_total", labels] == 3


def test_a_histogram_counts_a_value_at_a_bound_below_it_and_each_token_once() -> None:
    metrics = _metrics()
    metrics.inter_token_latency_s(0.08, 4)
    metrics.inter_token_latency_s(100.0, 1)
    samples = _samples(STATS, metrics)
    for bound, count in (("0.015", 0), ("0.02", 4), ("8.0", 4), ("+Inf", 5)):
        assert samples["axil_inter_token_latency_seconds_bucket", MODEL | {("le", bound)}] == count
    assert samples["axil_inter_token_latency_seconds_sum", MODEL] == pytest.approx(100.08)


def test_of_several_tokenizers_counts_are_summed_and_the_worst_state_is_shown() -> None:
    one, other = _metrics(stats_age_s=0.5, http_open_requests=2), _metrics(stats_age_s=9, unhealthy=1)
    reuse = Reuse(prompt_tokens=10, cached_tokens=9, copied_tokens=0, queue_s=0.0)
    for metrics in (one, one, other):
        metrics.time_to_first_token_s(0.3, reuse)
        metrics.answered("/generate", "POST", 200)
    before = one.figures().histograms["time_to_first_token_s"]["hit"].counts.copy()
    samples = _samples(STATS, one, other)
    assert samples["axil_time_to_first_token_seconds_count", MODEL | {("reuse", "hit")}] == 3
    labels = MODEL | {("route", "/generate"), ("method", "POST"), ("status", "200")}
    assert samples["axil_http_responses_total", labels] == 3
    assert samples["axil_http_open_requests", MODEL] == 2
    assert samples["axil_stats_age_seconds", MODEL] == 9
    assert samples["axil_healthy", MODEL] == 0
    assert samples["axil_tokenizers", MODEL] == 2
    assert one.figures().histograms["time_to_first_token_s"]["hit"].counts == before, "a scrape changed the counts"
