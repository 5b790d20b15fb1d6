from __future__ import annotations

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from runtime.metrics import Metrics
from tests.fakes import Server
from wire.messages import Stats


async def _samples(http: aiohttp.ClientSession) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    async with http.get("/metrics") as response:
        text = await response.text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


MODEL = frozenset({("model_name", "fake")})


async def test_hits_and_queries_have_the_same_labels(server: Server, http: aiohttp.ClientSession) -> None:
    samples = await _samples(http)
    assert samples["axil_cached_tokens_total", MODEL] / samples["axil_prompt_tokens_total", MODEL] == 0.4


async def test_the_scheduler_s_figures_are_shown_under_plain_names(server: Server, http: aiohttp.ClientSession) -> None:
    samples = await _samples(http)
    for name in ("running_requests", "waiting_requests", "pages", "free_pages", "runner_busy_seconds_total"):
        assert (f"axil_{name}", MODEL) in samples
    assert samples["axil_pages", MODEL] == 256


async def test_a_request_is_counted_once_in_each_histogram(server: Server, http: aiohttp.ClientSession) -> None:
    async with http.post("/generate", json={"text": "x"}) as response:
        assert response.status == 200
    async with http.post("/generate", json={"text": ""}) as response:
        assert response.status == 400
    samples = await _samples(http)
    assert samples["axil_time_to_first_token_seconds_count", MODEL] == 1
    assert samples["axil_e2e_request_latency_seconds_count", MODEL] == 1
    for status in ("200", "400"):
        labels = MODEL | {("route", "/generate"), ("status", status)}
        assert samples["axil_http_responses_total", labels] == 1


def test_a_histogram_counts_a_value_at_a_bound_below_it_and_each_token_once() -> None:
    metrics = Metrics(Stats, model_name="fake")
    metrics.inter_token_latency_s(0.08, 4)
    metrics.inter_token_latency_s(100.0, 1)
    lines = metrics.exposition([metrics.figures()]).decode().splitlines()
    bucket = 'axil_inter_token_latency_seconds_bucket{le="%s",model_name="fake"}'
    for bound, count in (("0.015", 0), ("0.02", 4), ("8.0", 4), ("+Inf", 5)):
        assert f"{bucket % bound} {count}.0" in lines
    assert 'axil_inter_token_latency_seconds_sum{model_name="fake"} 100.08' in lines
