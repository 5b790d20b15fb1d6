"""The measurement of programs, on a real server."""

from __future__ import annotations

import asyncio

import pytest

from bench.program_shapes import Sources, all_shapes
from bench.programs import WAYS, measure, served_model
from bench.words import Draw
from tests.e2e.server import Server

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("name", ["w2", "w3", "w4", "w5"])
def test_all_ways_make_the_same_calls_and_only_a_cache_reuses(tiny_server: Server, name: str) -> None:
    url = f"http://127.0.0.1:{tiny_server.port}"
    model = asyncio.run(served_model(url, None))
    runs = {}
    for way in WAYS:
        shape = all_shapes(Sources(draw=Draw(seed=2, scale=1 / 128)), runs=2)[name]
        runs[way] = measure(url, model, shape, way)
    calls = {run.report.calls for run in runs.values()}
    assert len(calls) == 1
    assert len({run.report.generated_tokens for run in runs.values()}) == 1
    assert runs["no cache"].report.cached_tokens == 0
    assert runs["programs"].report.cached_tokens > 0
    assert 1 <= runs["programs"].over_optimum <= runs["no cache"].over_optimum


def test_chats_and_patterns_run_in_all_ways_on_a_real_model(shared_server: Server) -> None:
    url = f"http://127.0.0.1:{shared_server.port}"
    model = asyncio.run(served_model(url, None))
    for name in ("w6", "w7"):
        for way in WAYS:
            shape = all_shapes(Sources(draw=Draw(seed=3, scale=1 / 128)), runs=1)[name]
            assert measure(url, model, shape, way).report.failed_calls == 0
