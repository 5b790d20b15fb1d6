from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model_runner.attention.backend import AttentionSpec
from model_runner.attention.cpu_backend import CpuAttention
from model_runner.batch import BatchPlan, build_batch
from model_runner.kernels.library import Library
from model_runner.rows import RowTable
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission, Chunk, StepPlan
from wire.sampling import SamplingParams

VOCABULARY = 10

lengths = st.tuples(
    st.one_of(st.integers(0, 40), st.sampled_from([15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1030])),
    st.one_of(st.just(1), st.integers(2, 40), st.sampled_from([64, 257])),
)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, library: Library) -> Iterator[Library]:
    library.set_threads(request.param)
    yield library
    library.set_threads(1)


@dataclass(frozen=True)
class Row:
    """A row's whole q, k and v; the last `extend` tokens are new in the step that is looked at."""

    q: Tensor
    k: Tensor
    v: Tensor
    extend: int

    @property
    def prefix(self) -> int:
        return len(self.q) - self.extend


class Bed:
    """A backend with rows on scattered pages, all of it NaN at first."""

    def __init__(self, spec: AttentionSpec, library: Library, rows: Sequence[Row]) -> None:
        self.backend, self.rows, self.spec = CpuAttention(spec, library), rows, spec
        counts = [-(-len(row.q) // spec.page_tokens) for row in rows]
        order = torch.randperm(sum(counts) + 3, generator=torch.Generator().manual_seed(1))
        self.pool = self.backend.make_kv_pool(len(order))
        for tensor in self.pool.layers:
            tensor.fill_(float("nan"))
        self.table = RowTable(num_pages=len(order), page_tokens=spec.page_tokens)
        for number, count in enumerate(counts):
            pages, order = order[:count], order[count:]
            self.table.admit(_admission(number, pages.tolist()))

    def run(self, pieces: dict[int, range]) -> dict[int, Tensor]:
        """One step with these positions of some rows; the result by row."""
        chunks = tuple(
            Chunk(row=row, token_ids=ids_to_bytes([1] * len(piece)), is_sampled=True) for row, piece in pieces.items()
        )
        batch = build_batch(self.table, StepPlan(step=0, chunks=chunks), vocabulary=VOCABULARY)
        q, k, v = (
            torch.cat([getattr(self.rows[row], name)[piece.start : piece.stop] for row, piece in pieces.items()])
            for name in "qkv"
        )
        out = self._forward(batch, q, k, v)
        for row, piece in pieces.items():
            self.table.lengths[row] = piece.stop
        return dict(zip(pieces, out.split([len(piece) for piece in pieces.values()]), strict=True))

    def last(self) -> dict[int, Tensor]:
        """Store all prefixes, then compute all new tokens in one step."""
        if any(row.prefix for row in self.rows):
            self.run({number: range(row.prefix) for number, row in enumerate(self.rows) if row.prefix})
        return self.run({number: range(row.prefix, len(row.q)) for number, row in enumerate(self.rows)})

    def _forward(self, batch: BatchPlan, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        handle = self.backend.begin_step(batch)
        return self.backend.forward(0, q, k, v, handle, torch.full_like(q, float("nan")))


@settings(max_examples=25)
@given(
    page_tokens=st.sampled_from([16, 32, 48]),
    heads=st.sampled_from([(1, 1), (3, 1), (2, 3), (1, 4), (1, 5), (2, 8), (1, 60)]),
    head_dim=st.sampled_from([8, 10, 64, 80, 96, 128, 256]),
    rows=st.lists(lengths, min_size=1, max_size=4),
    window=st.one_of(st.none(), st.integers(1, 40), st.sampled_from([255, 256, 257, 300])),
    softcap=st.sampled_from([None, 0.7]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_it_equals_dense_attention_for_any_page_table(
    library: Library,
    num_threads: int,
    page_tokens: int,
    heads: tuple[int, int],
    head_dim: int,
    rows: list[tuple[int, int]],
    window: int | None,
    softcap: float | None,
    dtype: torch.dtype,
    seed: int,
) -> None:
    library.set_threads(num_threads)
    spec = _spec(*heads, head_dim, dtype, page_tokens=page_tokens, windows=(window,), softcap=softcap)
    made = [_row(spec, prefix, extend, seed + number) for number, (prefix, extend) in enumerate(rows)]
    outs = Bed(spec, library, made).last()
    library.set_threads(1)
    is_rounded = dtype == torch.bfloat16 and library.has_bfloat16_products
    for number, row in enumerate(made):
        assert torch.allclose(outs[number], _dense(spec, row), atol=4e-2 if is_rounded else 4e-6, rtol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 100])
def test_every_bit_is_the_same_alone_in_a_batch_and_in_chunks_of_any_size(
    threads: Library, dtype: torch.dtype, window: int | None
) -> None:
    spec = _spec(2, 3, 64, dtype, windows=(window,))
    rows = [_row(spec, 0, length, seed) for seed, length in enumerate((700, 33, 5, 300, 17, 1))]
    whole = Bed(spec, threads, rows).run({number: range(len(row.q)) for number, row in enumerate(rows)})
    for number, row in enumerate(rows):
        for chunk in (1, 16, 50, 64, 512) if number in (0, 1) else (3,):
            alone = Bed(spec, threads, rows)
            starts = range(0, len(row.q), chunk)
            pieces = [alone.run({number: range(at, min(at + chunk, len(row.q)))})[number] for at in starts]
            assert torch.equal(torch.cat(pieces), whole[number])


def test_many_rows_that_decode_get_the_bits_that_each_gets_alone(threads: Library) -> None:
    spec = _spec(3, 3, 64, torch.bfloat16)
    rows = [_row(spec, 40 * number, 1, number) for number in range(32)]
    together = Bed(spec, threads, rows).last()
    for number in (0, 7, 30, 31):
        alone = Bed(spec, threads, [rows[number]]).last()
        assert torch.equal(alone[0], together[number])


def test_pages_long_before_the_window_are_not_read(library: Library) -> None:
    spec = _spec(2, 3, 64, torch.float32, windows=(20,))
    bed = Bed(spec, library, [_row(spec, 800, 3, 0)])
    bed.run({0: range(800)})
    expected = bed.run({0: range(800, 803)})[0]
    bed.pool.layers[0][bed.table.pages[0, :40]] = float("nan")  # positions below 640
    bed.table.lengths[0] = 800
    assert torch.equal(bed.run({0: range(800, 803)})[0], expected)


def test_a_copied_page_gives_the_bits_of_its_source(library: Library) -> None:
    spec = _spec(2, 3, 64, torch.bfloat16)
    row = _row(spec, 16, 5, 0)
    bed = Bed(spec, library, [row, row])
    bed.run({0: range(16)})
    sources, destinations = bed.table.pages[:2, :1].astype(np.int64)
    bed.pool.copy_pages(torch.from_numpy(sources), torch.from_numpy(destinations))
    bed.table.lengths[1] = 16
    outs = bed.run({0: range(16, 21), 1: range(16, 21)})
    assert torch.equal(outs[0], outs[1])


def test_a_row_with_nan_leaves_the_others_and_its_earlier_tokens_alone(library: Library) -> None:
    spec = _spec(1, 2, 64, torch.bfloat16)
    rows = [_row(spec, 0, 40, 0), _row(spec, 0, 40, 1)]
    expected = Bed(spec, library, rows).last()
    broken = replace(rows[0], q=rows[0].q.index_fill(0, torch.tensor([39]), float("nan")))
    outs = Bed(spec, library, [broken, rows[1]]).last()
    assert torch.equal(outs[1], expected[1]) and torch.equal(outs[0][:39], expected[0][:39])
    assert outs[0][39].isnan().all()


def test_bfloat16_in_and_out_is_converted_at_the_seam(library: Library) -> None:
    spec = _spec(2, 3, 64, torch.bfloat16)
    row = _row(spec, 0, 20, 0)
    halved = replace(row, **{name: getattr(row, name).bfloat16() for name in "qkv"})
    rounded = replace(row, **{name: getattr(row, name).bfloat16().float() for name in "qkv"})
    out = Bed(spec, library, [halved]).last()[0]
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, Bed(spec, library, [rounded]).last()[0].bfloat16())


def _row(spec: AttentionSpec, prefix: int, extend: int, seed: int) -> Row:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(prefix + extend, heads, spec.head_dim, generator=generator)
        for heads in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    )
    return Row(q, k, v, extend)


def _dense(spec: AttentionSpec, row: Row) -> Tensor:
    """The new tokens' attention in float64, over K and V as they are stored."""
    length, group = len(row.q), spec.num_heads // spec.num_kv_heads
    mask = torch.ones(row.extend, length, dtype=torch.bool).tril(diagonal=row.prefix)
    if spec.window(0) is not None:
        mask = mask.triu(diagonal=row.prefix - spec.window(0) + 1)
    keys, values = (x.to(spec.dtype).double().transpose(0, 1).repeat_interleave(group, dim=0) for x in (row.k, row.v))
    scores = row.q[row.prefix :].double().transpose(0, 1) @ keys.transpose(1, 2) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    mean = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ values
    return mean.transpose(0, 1).float()


def _spec(
    num_kv_heads: int,
    group: int,
    head_dim: int,
    dtype: torch.dtype,
    *,
    page_tokens: int = 16,
    windows: tuple[int | None, ...] = (None,),
    softcap: float | None = None,
) -> AttentionSpec:
    return AttentionSpec(
        num_layers=1,
        num_heads=num_kv_heads * group,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        dtype=dtype,
        page_tokens=page_tokens,
        windows=windows,
        softcap=softcap,
    )


def _admission(row: int, pages: list[int]) -> Admission:
    return Admission(
        row=row, request_id=str(row), sampling=SamplingParams(), num_cached_tokens=0, page_ids=ids_to_bytes(pages)
    )
