from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_runner.attention.backend import AttentionSpec
from model_runner.attention.torch_backend import TorchAttention
from model_runner.batch import build_batch
from model_runner.rows import RowTable
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission, Chunk, StepPlan
from wire.sampling import SamplingParams

K, G, H = 2, 3, 8
VOCABULARY = 10

lengths = st.tuples(
    st.one_of(st.integers(0, 40), st.sampled_from([15, 16, 17, 255, 256, 257, 511, 512, 513])),
    st.one_of(st.just(1), st.integers(2, 40), st.sampled_from([256, 300])),
)


@settings(max_examples=60, deadline=None)
@given(
    page_tokens=st.sampled_from([1, 4, 16, 48]),
    rows=st.lists(lengths, min_size=1, max_size=4),
    window=st.one_of(st.none(), st.integers(1, 40), st.sampled_from([255, 256, 257, 300])),
    softcap=st.sampled_from([None, 0.7]),
    seed=st.integers(0, 2**31),
)
def test_paged_attention_equals_dense_attention_for_any_page_table(
    page_tokens: int, rows: list[tuple[int, int]], window: int | None, softcap: float | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_pages = [-(-(prefix + extend) // page_tokens) for prefix, extend in rows]
    order = torch.randperm(sum(num_pages) + 3, generator=generator)
    backend = TorchAttention(replace(_spec(page_tokens), windows=(window,), softcap=softcap))
    pool = backend.make_kv_pool(len(order))
    for tensor in pool.layers:
        tensor[: pool.num_pages] = float("nan")  # what nobody has stored must not be read
    table = RowTable(num_pages=len(order), page_tokens=page_tokens)
    chunks, dense_k, dense_v = [], [], []
    for row, (prefix, extend) in enumerate(rows):
        pages, order = order[: num_pages[row]], order[num_pages[row] :]
        k, v = torch.randn(2, prefix + extend, K, H, generator=generator)
        slots = (pages[:, None] * page_tokens + torch.arange(page_tokens)).flatten()[: prefix + extend]
        pool.store(0, slots[:prefix], k[:prefix], v[:prefix])
        table.admit(_admission(row, prefix, pages.tolist()))
        chunks.append(Chunk(row=row, token_ids=ids_to_bytes([1] * extend), is_sampled=True))
        dense_k.append(k)
        dense_v.append(v)
    batch = build_batch(table, StepPlan(step=0, chunks=tuple(chunks)), vocabulary=VOCABULARY)
    q = torch.randn(batch.num_tokens, K * G, H, generator=generator)
    new_k = torch.cat([k[prefix:] for k, (prefix, _) in zip(dense_k, rows, strict=True)])
    new_v = torch.cat([v[prefix:] for v, (prefix, _) in zip(dense_v, rows, strict=True)])
    out = torch.full_like(q, float("nan"))
    backend.forward(0, q, new_k, new_v, backend.begin_step(batch), out)
    for row, (prefix, extend) in enumerate(rows):
        own = slice(batch.qo_indptr[row], batch.qo_indptr[row + 1])
        mask = torch.ones(extend, prefix + extend, dtype=torch.bool).tril(diagonal=prefix)
        if window is not None:
            mask = mask.triu(diagonal=prefix - window + 1)
        keys, values = (x[row].transpose(0, 1).repeat_interleave(G, dim=0) for x in (dense_k, dense_v))
        scores = q[own].transpose(0, 1) @ keys.transpose(1, 2) * H**-0.5
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        expected = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ values
        assert torch.allclose(out[own], expected.transpose(0, 1), atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("num_new_tokens", [1, 2, 300])
def test_pages_long_before_the_window_are_not_read(num_new_tokens: int) -> None:
    backend = TorchAttention(replace(_spec(16), windows=(20,)))
    pool = backend.make_kv_pool(80)
    pool.layers[0][:80] = torch.randn(pool.layers[0][:80].shape, generator=torch.Generator().manual_seed(0))
    pool.layers[0][:48] = float("nan")  # positions below 768
    table = RowTable(num_pages=80, page_tokens=16)
    table.admit(_admission(0, 800, range(80)))
    ids = ids_to_bytes([1] * num_new_tokens)
    plan = StepPlan(step=0, chunks=(Chunk(row=0, token_ids=ids, is_sampled=True),))
    batch = build_batch(table, plan, vocabulary=VOCABULARY)
    q, k, v = (torch.ones(num_new_tokens, n, H) for n in (K * G, K, K))
    out = backend.forward(0, q, k, v, backend.begin_step(batch), torch.empty_like(q))
    assert out.isfinite().all()


@pytest.mark.parametrize("num_others", [0, 5])
def test_a_decode_row_gets_the_same_bits_whoever_shares_the_batch(num_others: int) -> None:
    results = []
    for others in (0, num_others):
        generator = torch.Generator().manual_seed(0)
        backend = TorchAttention(_spec(16))
        pool = backend.make_kv_pool(500)
        for tensor in pool.layers:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        table = RowTable(num_pages=500, page_tokens=16)
        for row in range(others + 1):
            table.admit(_admission(row, 600 + 30 * row, range(70 * row, 70 * row + 70)))
        plan = StepPlan(step=0, decodes=ids_to_bytes(range(others + 1)))
        batch = build_batch(table, plan, vocabulary=VOCABULARY)
        q = torch.randn(6, K * G, H, generator=generator)[: others + 1]
        k, v = torch.randn(2, 6, K, H, generator=generator)[:, : others + 1]
        results.append(backend.forward(0, q, k, v, backend.begin_step(batch), torch.empty_like(q))[0])
    assert torch.equal(results[0], results[1])


def test_pages_are_copied_as_they_were_before_the_step() -> None:
    pool = TorchAttention(_spec(4)).make_kv_pool(4)
    for tensor in pool.layers:
        tensor[:4] = torch.arange(4.0)[:, None, None, None, None]
    pool.copy_pages(torch.tensor([0, 1]), torch.tensor([1, 2]))
    for tensor in pool.layers:
        assert tensor[:4, -1, -1, -1, -1].tolist() == [0, 0, 1, 3]


def _spec(page_tokens: int) -> AttentionSpec:
    return AttentionSpec(
        num_layers=1,
        num_heads=K * G,
        num_kv_heads=K,
        head_dim=H,
        scale=H**-0.5,
        dtype=torch.float32,
        page_tokens=page_tokens,
    )


def _admission(row: int, num_cached_tokens: int, pages: list[int] | range) -> Admission:
    return Admission(
        row=row,
        request_id=str(row),
        sampling=SamplingParams(),
        num_cached_tokens=num_cached_tokens,
        page_ids=ids_to_bytes(np.asarray(pages).tolist()),
    )
