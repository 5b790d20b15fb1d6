from __future__ import annotations

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes import Server


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
