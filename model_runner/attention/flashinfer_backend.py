"""Attention by FlashInfer's paged kernels: its FA2 ones, on NHD pages, planned from the host so that no step waits.

A step's decode rows go through the decode wrapper, the rest through the prefill wrapper, each planned once and run in
every layer; layers with a sliding window have a pair of their own, since the window is compiled in. Decode takes the
tensor cores' kernel, which is the prefill one: any number of query heads per kv head, and one module to compile.
"""

# T tokens in batch · N query heads · K kv heads · H head dim

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper
from torch import Tensor

from model_runner.batch import BatchPlan
from model_runner.device import make_fence, num_multiprocessors
from model_runner.kv_pool import KVPool, make_kv_pool
from model_runner.staging import Staging

from .backend import AttentionSpec, Capabilities

DTYPES: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 128, 256)
MIN_WORKSPACE_BYTES = 128 << 20
"""What FlashInfer's documentation asks for."""

_TILE_ROWS = 128
_TILES_PER_MULTIPROCESSOR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashInferStep:
    """What all layers of a step share; the wrappers hold the rest. The first `num_decodes` tokens are one row each."""

    out_loc_T: Tensor
    num_decodes: int
    num_tokens: int


class FlashInferAttention:
    """FlashInfer's wrappers over this pool."""

    def __init__(self, spec: AttentionSpec, device: torch.device) -> None:
        self._spec = spec
        self._device = device
        workspace = torch.empty(
            workspace_bytes(spec, num_multiprocessors=num_multiprocessors(device)), dtype=torch.uint8, device=device
        )
        self._staging = Staging(device)
        windows = dict.fromkeys(spec.window(layer) for layer in range(spec.num_layers))
        self._pairs = {window: _Pair(spec, window, workspace, device) for window in windows}
        self._pool: KVPool | None = None
        self._caches: tuple[tuple[Tensor, Tensor], ...] = ()

    def capabilities(self) -> Capabilities:
        """16-bit types and the head dims that FA2 is compiled for; any page size."""
        return Capabilities(dtypes=DTYPES, page_tokens=None, head_dims=HEAD_DIMS, is_order_fixed=False)

    def make_kv_pool(self, num_pages: int) -> KVPool:
        """Allocate the pool; its K and V are views of equal strides, as the kernels ask."""
        spec = self._spec
        self._pool = make_kv_pool(
            num_pages=num_pages,
            page_tokens=spec.page_tokens,
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=spec.dtype,
            device=self._device,
        )
        self._caches = tuple((pages[:, :, 0], pages[:, :, 1]) for pages in self._pool.layers)
        return self._pool

    def begin_step(self, batch: BatchPlan) -> FlashInferStep:
        """Plan the wrappers that the batch needs; queues copies and waits for none of them."""
        is_long = batch.extend_lens != 1
        num_decodes = int(is_long.argmax()) if is_long.any() else batch.num_rows
        with self._staging.step():
            out_loc_T = self._staging.device(batch.out_loc_T.numpy())
            decodes = self._rows(batch, 0, num_decodes) if num_decodes else None
            extends = self._rows(batch, num_decodes, batch.num_rows) if num_decodes < batch.num_rows else None
            for pair in self._pairs.values():
                if decodes is not None:
                    pair.plan_decodes(decodes)
                if extends is not None:
                    pair.plan_extends(extends)
        return FlashInferStep(out_loc_T=out_loc_T, num_decodes=num_decodes, num_tokens=batch.num_tokens)

    def forward(
        self, layer: int, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, handle: FlashInferStep, out_TNH: Tensor
    ) -> Tensor:
        """Store, then attend: extends read their own tokens from the pool."""
        assert self._pool is not None, "make_kv_pool comes first"
        self._pool.store(layer, handle.out_loc_T, k_TKH, v_TKH)
        pair, cache, num_decodes = self._pairs[self._spec.window(layer)], self._caches[layer], handle.num_decodes
        if num_decodes:
            pair.decode.run(q_TNH[:num_decodes], cache, out=out_TNH[:num_decodes], enable_pdl=False)
        if num_decodes < handle.num_tokens:
            pair.extend.run(q_TNH[num_decodes:], cache, out=out_TNH[num_decodes:], enable_pdl=False)
        return out_TNH

    def _rows(self, batch: BatchPlan, start: int, end: int) -> _Rows:
        """The part of the batch that one wrapper takes, as if there were no other."""
        qo_indptr = batch.qo_indptr[start : end + 1] - batch.qo_indptr[start]
        kv_indptr = batch.kv_indptr[start : end + 1]
        stage = self._staging
        return _Rows(
            qo_indptr=stage.host(qo_indptr),
            kv_indptr=stage.host(kv_indptr - kv_indptr[0]),
            kv_indices=stage.device(batch.kv_indices[kv_indptr[0] : kv_indptr[-1]]),
            last_page_len=stage.host(batch.last_page_len[start:end]),
            kv_lens=stage.host(batch.kv_lens[start:end]).as_subclass(_Lengths),
            max_new_tokens=int(batch.extend_lens[start:end].max()),
        )


class _Lengths(Tensor):
    """A host tensor of lengths that costs one operation to take the maximum of.

    FlashInfer applies Python's own `max` to it, which makes a tensor of every element: 2 ms for 256 rows.
    """

    # What is made of it is a plain tensor.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Tensor]:
        yield self.max()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """What a wrapper is planned with: int32, all on the host but the page numbers."""

    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    last_page_len: Tensor
    kv_lens: Tensor
    max_new_tokens: int


class _Pair:
    """The wrappers of the layers of one window."""

    def __init__(self, spec: AttentionSpec, window: int | None, workspace: Tensor, device: torch.device) -> None:
        self._heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.page_tokens)
        self._options = {
            # FlashInfer counts the positions before a query's own.
            "window_left": -1 if window is None else window - 1,
            "logits_soft_cap": spec.softcap,
            "q_data_type": spec.dtype,
            "kv_data_type": spec.dtype,
            "sm_scale": spec.scale,
            "non_blocking": True,
        }
        self.decode = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True, backend="fa2")
        self.extend = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
        # A plan is written into the wrapper's own pinned memory and copied from there when its turn comes: the next
        # one must not overwrite it before.
        self._decode_planned, self._extend_planned = make_fence(device), make_fence(device)

    def plan_decodes(self, rows: _Rows) -> None:
        """Schedule rows of one token each."""
        self._decode_planned.wait()
        self.decode.plan(
            rows.kv_indptr, rows.kv_indices, rows.last_page_len, *self._heads, seq_lens=rows.kv_lens, **self._options
        )
        self._decode_planned.set()

    def plan_extends(self, rows: _Rows) -> None:
        """Schedule rows of any number of tokens, each of which sees what is before it."""
        self._extend_planned.wait()
        self.extend.plan(
            rows.qo_indptr,
            rows.kv_indptr,
            rows.kv_indices,
            rows.last_page_len,
            *self._heads,
            causal=True,
            seq_lens=rows.kv_lens,
            max_token_per_sequence=rows.max_new_tokens,
            **self._options,
        )
        self._extend_planned.set()


def workspace_bytes(spec: AttentionSpec, *, num_multiprocessors: int) -> int:
    """Memory for partial results of rows that are split among multiprocessors.

    One float32 vector and its sum for every head and row of a tile; FlashInfer splits into at most two tiles a
    multiprocessor, shared among the kv heads. A quarter more, for its alignment.
    """
    num_tiles = -(-_TILES_PER_MULTIPROCESSOR * num_multiprocessors // spec.num_kv_heads)
    needed = spec.num_heads * num_tiles * _TILE_ROWS * (spec.head_dim + 1) * 4
    return max(MIN_WORKSPACE_BYTES, needed * 5 // 4)
