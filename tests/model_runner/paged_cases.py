"""Attention over random page tables and what dense attention makes of the same tokens, for any backend's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model_runner.attention.backend import AttentionBackend, AttentionSpec
from model_runner.batch import BatchPlan, build_batch
from model_runner.rows import RowTable
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission, Chunk, StepPlan
from wire.sampling import SamplingParams

VOCABULARY = 10


@dataclass(frozen=True)
class Row:
    """`prefix` stored tokens and `extend` new ones; the first `shared` of them, whole pages, are row 0's."""

    prefix: int
    extend: int
    shared: int = 0


MIXED = [Row(34, 1), Row(48, 1, shared=32), Row(0, 33), Row(40, 9), Row(32, 1, shared=32), Row(0, 1)]
"""Two decode rows and four prefills, some behind pages of the first row."""


@dataclass(frozen=True)
class Case:
    """A batch whose prefixes lie in the pool, and for each layer q, the new k and v, and what must come out."""

    batch: BatchPlan
    layers: tuple[tuple[Tensor, Tensor, Tensor, Tensor], ...]


def make_spec(
    *,
    head_dim: int = 64,
    num_kv_heads: int = 2,
    group: int = 3,
    page_tokens: int = 16,
    dtype: torch.dtype = torch.float32,
    softcap: float | None = None,
    windows: tuple[int | None, ...] = (None,),
) -> AttentionSpec:
    """A shape with as many layers as windows."""
    return AttentionSpec(
        num_layers=len(windows),
        num_heads=group * num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        dtype=dtype,
        page_tokens=page_tokens,
        softcap=softcap,
        windows=windows,
    )


def make_case(
    spec: AttentionSpec, backend: AttentionBackend, rows: Sequence[Row], *, seed: int = 0, num_decodes: int = 0
) -> Case:
    """Permuted pages, NaN in every slot that nobody has stored to; the first `num_decodes` rows are decode rows."""
    generator = torch.Generator().manual_seed(seed)
    page, kv_heads, dim = spec.page_tokens, spec.num_kv_heads, spec.head_dim
    num_pages = [-(-(row.prefix + row.extend) // page) for row in rows]
    order = torch.randperm(sum(num_pages) + 3, generator=generator)
    pool = backend.make_kv_pool(len(order))
    device = pool.layers[0].device
    for tensor in pool.layers:
        tensor.fill_(float("nan"))
    tables: list[list[int]] = []
    for row, count in zip(rows, num_pages, strict=True):
        shared = row.shared // page
        pages, order = order[: count - shared], order[count - shared :]
        tables.append([*(tables[0][:shared] if tables else []), *pages.tolist()])
    dense = []
    for layer in range(spec.num_layers):
        dense.append([])
        for index, row in enumerate(rows):
            k, v = torch.randn(2, row.prefix + row.extend, kv_heads, dim, generator=generator).to(spec.dtype)
            if row.shared:
                for x, first in zip((k, v), dense[layer][0], strict=True):
                    x[: row.shared] = first[: row.shared]
            slots = torch.tensor(tables[index])[:, None] * page + torch.arange(page)
            stored = slots.flatten()[: row.prefix]
            pool.store(layer, stored.to(device), k[: row.prefix].to(device), v[: row.prefix].to(device))
            dense[layer].append((k, v))
    batch = _batch(spec, rows, tables, num_decodes)
    layers = []
    for layer, window in enumerate(spec.windows):
        q = torch.randn(batch.num_tokens, spec.num_heads, dim, generator=generator).to(spec.dtype)
        new_k, new_v = (
            torch.cat([kv[which][row.prefix :] for kv, row in zip(dense[layer], rows, strict=True)]) for which in (0, 1)
        )
        expected = torch.empty(q.shape, dtype=torch.float64)
        for index, row in enumerate(rows):
            own = slice(batch.qo_indptr[index], batch.qo_indptr[index + 1])
            expected[own] = _dense(spec, q[own], *dense[layer][index], row.prefix, window)
        layers.append(tuple(x.to(device) for x in (q, new_k, new_v, expected)))
    return Case(batch=batch, layers=tuple(layers))


def assert_attends(backend: AttentionBackend, case: Case, *, tolerance: float) -> None:
    """Every layer gives what dense attention gives, in the norm of each token relative to the largest."""
    handle = backend.begin_step(case.batch)
    for layer in range(len(case.layers)):
        assert_layer(
            lambda *args: backend.forward(*args, handle, torch.full_like(args[1], float("nan"))),
            layer,
            case,
            tolerance=tolerance,
        )


def assert_layer(forward: Callable[..., Tensor], layer: int, case: Case, *, tolerance: float) -> None:
    """One layer of `assert_attends`; `forward` takes the layer's number, q, k and v."""
    q, k, v, expected = case.layers[layer]
    out = forward(layer, q, k, v).double()
    worst = ((out - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()
    assert worst <= tolerance, f"layer {layer}: off by {worst:.2e}"


def _dense(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, prefix: int, window: int | None) -> Tensor:
    group = spec.num_heads // spec.num_kv_heads
    keys, values = (x.double().transpose(0, 1).repeat_interleave(group, dim=0) for x in (k, v))
    scores = q.double().transpose(0, 1) @ keys.transpose(1, 2) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(diagonal=prefix)
    if window is not None:
        mask = mask.triu(diagonal=prefix - window + 1)
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values).transpose(0, 1)


def _batch(spec: AttentionSpec, rows: Sequence[Row], tables: Sequence[Sequence[int]], num_decodes: int) -> BatchPlan:
    table = RowTable(num_pages=10**6, page_tokens=spec.page_tokens)
    chunks = []
    for index, (row, pages) in enumerate(zip(rows, tables, strict=True)):
        admission = Admission(
            row=index,
            request_id=str(index),
            sampling=SamplingParams(),
            num_cached_tokens=row.prefix,
            page_ids=ids_to_bytes(pages),
        )
        table.admit(admission)
        if index >= num_decodes:
            chunks.append(Chunk(row=index, token_ids=ids_to_bytes([1] * row.extend), is_sampled=True))
    plan = StepPlan(step=0, decodes=ids_to_bytes(range(num_decodes)), chunks=tuple(chunks))
    return build_batch(table, plan, vocabulary=VOCABULARY)
