"""Attention by own Triton kernels over the paged pool: nothing to plan, minutes of compilation less than FlashInfer.

A step's decode rows are each split among programs and merged, the rest go tile by tile. With `is_deterministic` all
rows go tile by tile, so that a token's sums are the same whether it was decoded or prefilled. On a CPU it runs in
Triton's interpreter only (TRITON_INTERPRET=1), thousands of times slower, which is for tests.
"""

# T tokens in batch · N query heads · K kv heads · H head dim

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from model_runner.batch import BatchPlan
from model_runner.kv_pool import KVPool
from model_runner.staging import Staging

from . import triton_kernels as kernels
from .backend import AttentionSpec, Capabilities, make_slot_pool

DTYPES: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32)
MAX_HEAD_DIM = 256

_NUM_SPLITS = 16
"""Programs that share one decode row's positions, for each kv head."""
_BLOCK = 32
_TILE = 64
_LEAST_ROWS = 16
"""The tensor cores' smallest tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Consecutive rows of a batch as the kernels read them, on the device; offsets count the whole batch's."""

    num_rows: int
    max_new_tokens: int
    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    kv_lens: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Partials:
    """What the splits of decode rows leave to be merged."""

    weighted: Tensor
    log_sums: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonStep:
    """What all layers of a step share; decode rows are one token each and come first."""

    out_loc_T: Tensor
    decodes: tuple[Rows, Partials] | None
    extends: Rows | None


class TritonAttention:
    """The kernels over this pool."""

    def __init__(self, spec: AttentionSpec, device: torch.device, *, is_deterministic: bool = False) -> None:
        self._spec = spec
        self._device = device
        self._is_deterministic = is_deterministic
        self._staging = Staging(device)
        self._graph_memory: TritonStep | None = None
        self._pool: KVPool | None = None
        self._caches: tuple[tuple[Tensor, Tensor], ...] = ()

    def capabilities(self) -> Capabilities:
        """Any page size, any head dim up to 256, any number of query heads for a kv head."""
        return Capabilities(
            dtypes=DTYPES,
            page_tokens=None,
            head_dims=tuple(range(2, MAX_HEAD_DIM + 1, 2)),
            is_order_fixed=self._is_deterministic,
        )

    def make_kv_pool(self, num_pages: int) -> KVPool:
        """Allocate the pool."""
        self._pool = make_slot_pool(self._spec, num_pages, self._device)
        self._caches = tuple((pages[:, :, 0], pages[:, :, 1]) for pages in self._pool.layers)
        return self._pool

    def begin_step(self, batch: BatchPlan) -> TritonStep:
        """Queue copies of the lengths and pages."""
        is_long = batch.extend_lens != 1
        num_decodes = int(is_long.argmax()) if is_long.any() else batch.num_rows
        if self._is_deterministic:
            num_decodes = 0
        stage = self._staging
        with stage.step():
            rows = Rows(
                num_rows=batch.num_rows,
                max_new_tokens=int(batch.extend_lens.max()),
                qo_indptr=stage.device(batch.qo_indptr),
                kv_indptr=stage.device(batch.kv_indptr),
                kv_indices=stage.device(batch.kv_indices),
                kv_lens=stage.device(batch.kv_lens),
            )
            out_loc_T = stage.device(batch.out_loc_T.numpy())
        decodes = (_cut(rows, 0, num_decodes), self._partials(num_decodes)) if num_decodes else None
        extends = _cut(rows, num_decodes, batch.num_rows) if num_decodes < batch.num_rows else None
        return TritonStep(out_loc_T=out_loc_T, decodes=decodes, extends=extends)

    def begin_capture(self, batch: BatchPlan, *, max_pages: int) -> TritonStep:
        """A handle in the memory of the first one, which has most rows: one of them runs at a time."""
        size, device = batch.num_rows, self._device
        if self._graph_memory is None:
            rows = Rows(
                num_rows=size,
                max_new_tokens=1,
                qo_indptr=torch.arange(size + 1, dtype=torch.int32, device=device),
                kv_indptr=torch.zeros(size + 1, dtype=torch.int32, device=device),
                kv_indices=torch.zeros(max_pages, dtype=torch.int32, device=device),
                kv_lens=torch.ones(size, dtype=torch.int32, device=device),
            )
            out_loc = torch.zeros(size, dtype=torch.int64, device=device)
            self._graph_memory = TritonStep(out_loc_T=out_loc, decodes=(rows, self._partials(size)), extends=None)
        memory = self._graph_memory
        assert memory.decodes is not None, "it was made so"
        rows, partials = memory.decodes
        handle = TritonStep(out_loc_T=memory.out_loc_T[:size], decodes=(_cut(rows, 0, size), partials), extends=None)
        self.begin_replay(handle, batch)
        return handle

    def begin_replay(self, handle: TritonStep, batch: BatchPlan) -> None:
        """Write the rows into the handle's memory."""
        assert handle.decodes is not None, "a handle of a capture has rows"
        rows, _ = handle.decodes
        with self._staging.step():
            for static, array in (
                (handle.out_loc_T, batch.out_loc_T.numpy()),
                (rows.kv_indptr, batch.kv_indptr),
                (rows.kv_indices, batch.kv_indices),
                (rows.kv_lens, batch.kv_lens),
            ):
                static[: len(array)].copy_(self._staging.host(array), non_blocking=True)

    def forward(
        self, layer: int, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, handle: TritonStep, out_TNH: Tensor
    ) -> Tensor:
        """Store, then attend: all rows read their own tokens from the pool."""
        assert self._pool is not None, "make_kv_pool comes first"
        self._pool.store(layer, handle.out_loc_T, k_TKH, v_TKH)
        if handle.decodes is not None:
            self._decode(layer, q_TNH, *handle.decodes, out_TNH)
        if handle.extends is not None:
            self._extend(layer, q_TNH, handle.extends, out_TNH)
        return out_TNH

    def _decode(self, layer: int, q_TNH: Tensor, rows: Rows, partials: Partials, out_TNH: Tensor) -> None:
        spec, (k_cache, v_cache) = self._spec, self._caches[layer]
        group, window = spec.num_heads // spec.num_kv_heads, spec.window(layer) or 0
        padded_dim = triton.next_power_of_2(spec.head_dim)
        kernels.decode_split[(rows.num_rows, spec.num_kv_heads, _NUM_SPLITS)](
            q_TNH,
            k_cache,
            v_cache,
            partials.weighted,
            partials.log_sums,
            rows.kv_lens,
            rows.kv_indptr,
            rows.kv_indices,
            spec.scale,
            spec.softcap or 0.0,
            *q_TNH.stride()[:2],
            *k_cache.stride()[1:3],
            HAS_SOFTCAP=spec.softcap is not None,
            WINDOW=window,
            GROUP=group,
            PAGE=spec.page_tokens,
            HEAD_DIM=spec.head_dim,
            PADDED_DIM=padded_dim,
            PADDED_GROUP=max(_LEAST_ROWS, triton.next_power_of_2(group)),
            BLOCK=_BLOCK,
            NUM_SPLITS=_NUM_SPLITS,
            FACTOR=self._factor_type(),
        )
        kernels.decode_merge[(rows.num_rows, spec.num_heads)](
            partials.weighted,
            partials.log_sums,
            rows.kv_lens,
            out_TNH,
            *out_TNH.stride()[:2],
            WINDOW=window,
            HEAD_DIM=spec.head_dim,
            PADDED_DIM=padded_dim,
            BLOCK=_BLOCK,
            NUM_SPLITS=_NUM_SPLITS,
        )

    def _extend(self, layer: int, q_TNH: Tensor, rows: Rows, out_TNH: Tensor) -> None:
        spec, (k_cache, v_cache) = self._spec, self._caches[layer]
        group = spec.num_heads // spec.num_kv_heads
        kernels.extend[(triton.cdiv(rows.max_new_tokens * group, _TILE), spec.num_kv_heads, rows.num_rows)](
            q_TNH,
            k_cache,
            v_cache,
            out_TNH,
            rows.qo_indptr,
            rows.kv_lens,
            rows.kv_indptr,
            rows.kv_indices,
            spec.scale,
            spec.softcap or 0.0,
            *q_TNH.stride()[:2],
            *out_TNH.stride()[:2],
            *k_cache.stride()[1:3],
            HAS_SOFTCAP=spec.softcap is not None,
            WINDOW=spec.window(layer) or 0,
            GROUP=group,
            PAGE=spec.page_tokens,
            HEAD_DIM=spec.head_dim,
            PADDED_DIM=triton.next_power_of_2(spec.head_dim),
            TILE=_TILE,
            BLOCK=_BLOCK,
            FACTOR=self._factor_type(),
        )

    def _partials(self, num_rows: int) -> Partials:
        shape = (num_rows, self._spec.num_heads, _NUM_SPLITS)
        return Partials(
            weighted=torch.empty(*shape, self._spec.head_dim, device=self._device),
            log_sums=torch.empty(shape, device=self._device),
        )

    def _factor_type(self) -> tl.dtype:
        """What is multiplied: the pool's type, and float32 in the interpreter, which multiplies bfloat16's bits."""
        if is_interpreted():
            return tl.float32
        return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[self._spec.dtype]


def is_interpreted() -> bool:
    """Whether Triton runs its programs in Python, on any device's tensors."""
    return bool(triton.knobs.runtime.interpret)


def _cut(rows: Rows, start: int, end: int) -> Rows:
    return Rows(
        num_rows=end - start,
        max_new_tokens=rows.max_new_tokens,
        qo_indptr=rows.qo_indptr[start : end + 1],
        kv_indptr=rows.kv_indptr[start : end + 1],
        kv_indices=rows.kv_indices,
        kv_lens=rows.kv_lens[start:end],
    )
