"""Servers of one model on the GPU, asked the same over HTTP: axil, and vLLM and SGLang where they are installed.

Knows no limits. Every server answers `/v1/completions` with token ids as prompts.
"""

from __future__ import annotations

import http.client
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec

import uvloop

from bench.client import connected
from bench.command import CannotMeasure
from bench.decoding import asked, batch_rate, ttft_s
from bench.gpu_steps import Figure
from bench.server import Server, free_port, health, launched, started

OUTPUT_TOKENS = 128
READY_S = 600.0
COMMANDS = {
    "vllm": ["vllm.entrypoints.openai.api_server", "--model"],
    "sglang": ["sglang.launch_server", "--model-path"],
}
"""The modules of other servers, and their flag for the model."""


def names() -> list[str]:
    """The servers that are installed here."""
    return ["axil", *(name for name in COMMANDS if find_spec(name) is not None)]


@contextmanager
def serving(name: str, model: str | None, flags: Sequence[str]) -> Iterator[Server]:
    """Start one of them; `flags` are axil's.

    Raises:
        CannotMeasure: it did not become ready, or has no model to serve.
    """
    if name == "axil":
        with launched([*([] if model is None else [model]), *flags]) as server:
            yield server
        return
    if model is None:
        raise CannotMeasure(f"{name} can't serve the embedded model; name a directory of safetensors")
    port = free_port()
    words = [sys.executable, "-m", *COMMANDS[name], model, "--host", "127.0.0.1", "--port", str(port)]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with (
        closing(connection),
        started(
            name,
            words,
            port=port,
            is_ready=lambda: health(connection) == 200,
            within_s=READY_S,
            environment={},
        ) as server,
    ):
        yield server


def measured(url: str, *, contexts: Sequence[int], batches: Sequence[int], num_ids: int = 20_000) -> list[Figure]:
    """Time to the first token of a prompt, cold and warm, and ms between tokens in batches.

    Raises:
        CannotMeasure: a request failed.
    """
    return uvloop.run(_measured(url, contexts, batches, random.Random(0), num_ids))


async def _measured(
    url: str, contexts: Sequence[int], batches: Sequence[int], draw: random.Random, num_ids: int
) -> list[Figure]:
    figures = []
    async with connected(url, None) as client:
        for context in contexts:
            # With the answer they are as long as a context: a model may have no more.
            length = max(1, context - OUTPUT_TOKENS)
            prompts = [tuple(draw.randrange(100, num_ids) for _ in range(length)) for _ in range(max(batches))]
            for kind in ("cold", "warm"):
                answer = await asked(client, prompts[0], max_tokens=2)
                figures.append(Figure(name=f"TTFT {kind} {context}", value=1000 * ttft_s(answer), unit="ms"))
            for batch in batches:
                rate = await batch_rate(client, prompts[:batch], num_tokens=OUTPUT_TOKENS)
                figures.append(Figure(name=f"decode {context} x {batch}", value=1000 * batch / rate, unit="ms"))
    return figures
