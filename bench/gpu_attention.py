"""Attention of a decode step alone: by the runner's backend over scattered pages, by torch's over one piece of memory.

One layer is timed, for as many as the model has. Knows no weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from bench.gpu_limits import timed_ms
from model_runner.attention.backend import AttentionBackend, AttentionSpec
from model_runner.batch import BatchPlan, build_batch
from model_runner.ladder import Ceilings
from model_runner.rows import RowTable
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission, StepPlan
from wire.sampling import SamplingParams


def attention_ms(
    new_backend: Callable[[AttentionSpec], AttentionBackend[Any]],
    spec: AttentionSpec,
    *,
    context: int,
    num_rows: int,
    device: torch.device,
) -> float:
    """A backend's time for all layers of a step of decode rows; planning is not in it, storing the new token is."""
    backend = new_backend(replace(spec, num_layers=1, windows=()))
    with torch.inference_mode():
        num_pages = -(-context // spec.page_tokens)
        pool = backend.make_kv_pool(num_rows * num_pages)
        for pages in pool.layers:
            pages.normal_()
        handle = backend.begin_step(_decode_rows(num_rows, num_pages, context, spec.page_tokens))
        q = torch.randn(num_rows, spec.num_heads, spec.head_dim, dtype=spec.dtype, device=device)
        k, v = torch.randn(2, num_rows, spec.num_kv_heads, spec.head_dim, dtype=spec.dtype, device=device)
        out = torch.empty_like(q)
        return spec.num_layers * timed_ms(lambda: backend.forward(0, q, k, v, handle, out), device)


def sdpa_ms(spec: AttentionSpec, *, context: int, num_rows: int, device: torch.device) -> float:
    """The same by torch's attention, over keys and values in one piece: no pages to follow."""
    q = torch.randn(num_rows, spec.num_heads, 1, spec.head_dim, dtype=spec.dtype, device=device)
    k, v = torch.randn(2, num_rows, spec.num_kv_heads, context, spec.head_dim, dtype=spec.dtype, device=device)
    return spec.num_layers * timed_ms(
        lambda: F.scaled_dot_product_attention(q, k, v, scale=spec.scale, enable_gqa=True), device
    )


def limit_ms(spec: AttentionSpec, limits: Ceilings, *, context: int, num_rows: int) -> float:
    """The time to read all keys and values once."""
    num_bytes = 2 * spec.num_layers * num_rows * context * spec.num_kv_heads * spec.head_dim * spec.dtype.itemsize
    return 1000 * num_bytes / (limits.read_gb_s * 1e9)


def _decode_rows(num_rows: int, num_pages: int, context: int, page_tokens: int) -> BatchPlan:
    """Rows of `context` tokens, the last of them new, on pages in no order."""
    order = np.random.default_rng(0).permutation(num_rows * num_pages)
    table = RowTable(num_pages=len(order), page_tokens=page_tokens)
    for row in range(num_rows):
        own = order[row * num_pages : (row + 1) * num_pages]
        table.admit(
            Admission(
                row=row,
                request_id=str(row),
                sampling=SamplingParams(),
                num_cached_tokens=context - 1,
                page_ids=ids_to_bytes(own.tolist()),
            )
        )
    return build_batch(table, StepPlan(step=0, decodes=ids_to_bytes(range(num_rows))), vocabulary=2)
