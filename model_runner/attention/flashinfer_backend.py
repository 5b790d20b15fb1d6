"""Attention by FlashInfer's paged kernels: its FA2 ones, on NHD pages, planned from the host so that no step waits.

A step's decode rows go through the decode wrapper, the rest through the prefill wrapper, each planned once and run in
every layer; layers with a sliding window have a pair of their own, since the window is compiled in. Decode takes the
tensor cores' kernel, which is the prefill one: any number of query heads per kv head, and one module to compile.
"""

# T tokens in batch · N query heads · K kv heads · H head dim

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from model_runner.batch import BatchPlan
from model_runner.device import num_multiprocessors
from model_runner.kv_pool import KVPool
from model_runner.staging import Staging

from .backend import AttentionSpec, Capabilities, make_slot_pool
from .flashinfer_wrappers import Decode, Extend, GraphMemory, Lengths, Rows, workspace_bytes

DTYPES: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 128, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashInferStep:
    """What all layers of a step share. The first `num_decodes` tokens are one row each; wrappers are by window."""

    out_loc_T: Tensor
    num_decodes: int
    num_tokens: int
    decodes: Mapping[int | None, Decode]
    extends: Mapping[int | None, Extend]


class FlashInferAttention:
    """FlashInfer's wrappers over this pool; `max_graph_rows` is how many rows a recorded step may have, if any is."""

    CAPABILITIES: ClassVar = Capabilities(dtypes=DTYPES, page_tokens=None, head_dims=HEAD_DIMS, is_order_fixed=False)

    def __init__(self, spec: AttentionSpec, device: torch.device, *, max_graph_rows: int = 0) -> None:
        self._spec = spec
        self._device = device
        self._float_workspace = torch.empty(
            workspace_bytes(spec, num_multiprocessors=num_multiprocessors(device), max_graph_rows=max_graph_rows),
            dtype=torch.uint8,
            device=device,
        )
        self._staging = Staging(device)
        self._windows = dict.fromkeys(spec.window(layer) for layer in range(spec.num_layers))
        self._decodes = {window: Decode(spec, window, self._float_workspace) for window in self._windows}
        self._extends = {window: Extend(spec, window, self._float_workspace) for window in self._windows}
        self._graph_memory: GraphMemory | None = None
        self._pool: KVPool | None = None
        self._caches: tuple[tuple[Tensor, Tensor], ...] = ()

    def capabilities(self) -> Capabilities:
        """16-bit types and the head dims that FA2 is compiled for; any page size."""
        return self.CAPABILITIES

    def make_kv_pool(self, num_pages: int) -> KVPool:
        """Allocate the pool; its K and V are views of equal strides, as the kernels ask."""
        self._pool = make_slot_pool(self._spec, num_pages, self._device)
        self._caches = tuple((pages[:, :, 0], pages[:, :, 1]) for pages in self._pool.layers)
        return self._pool

    def begin_step(self, batch: BatchPlan) -> FlashInferStep:
        """Plan the wrappers that the batch needs; queues copies and waits for none of them."""
        is_long = batch.extend_lens != 1
        num_decodes = int(is_long.argmax()) if is_long.any() else batch.num_rows
        with self._staging.step():
            out_loc_T = self._staging.device(batch.out_loc_T.numpy())
            if num_decodes:
                rows = self._rows(batch, 0, num_decodes)
                for decode in self._decodes.values():
                    decode.plan(rows)
            if num_decodes < batch.num_rows:
                rows = self._rows(batch, num_decodes, batch.num_rows)
                for extend in self._extends.values():
                    extend.plan(rows)
        return FlashInferStep(
            out_loc_T=out_loc_T,
            num_decodes=num_decodes,
            num_tokens=batch.num_tokens,
            decodes=self._decodes,
            extends=self._extends,
        )

    def begin_capture(self, batch: BatchPlan, *, max_pages: int) -> FlashInferStep:
        """A handle with wrappers of its own, of which all numbers of rows share the memory that can be shared."""
        size = batch.num_rows
        if self._graph_memory is None:
            self._graph_memory = GraphMemory(
                indptr=torch.zeros(size + 1, dtype=torch.int32, device=self._device),
                last_page_len=torch.ones(size, dtype=torch.int32, device=self._device),
                indices=torch.zeros(max_pages, dtype=torch.int32, device=self._device),
                int_workspaces={},
            )
        handle = FlashInferStep(
            out_loc_T=torch.zeros(size, dtype=torch.int64, device=self._device),
            num_decodes=size,
            num_tokens=size,
            decodes={
                window: Decode(self._spec, window, self._float_workspace, self._graph_memory, num_rows=size)
                for window in self._windows
            },
            extends={},
        )
        self.begin_replay(handle, batch)
        return handle

    def begin_replay(self, handle: FlashInferStep, batch: BatchPlan) -> None:
        """Write the rows into the handle's memory and plan for them."""
        with self._staging.step():
            handle.out_loc_T.copy_(self._staging.host(batch.out_loc_T.numpy()), non_blocking=True)
            rows = self._rows(batch, 0, batch.num_rows)
            for decode in handle.decodes.values():
                decode.plan(rows)

    def forward(
        self, layer: int, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, handle: FlashInferStep, out_TNH: Tensor
    ) -> Tensor:
        """Store, then attend: extends read their own tokens from the pool."""
        assert self._pool is not None, "make_kv_pool comes first"
        self._pool.store(layer, handle.out_loc_T, k_TKH, v_TKH)
        window, cache, num_decodes = self._spec.window(layer), self._caches[layer], handle.num_decodes
        if num_decodes:
            handle.decodes[window].run(q_TNH[:num_decodes], cache, out_TNH[:num_decodes])
        if num_decodes < handle.num_tokens:
            handle.extends[window].run(q_TNH[num_decodes:], cache, out_TNH[num_decodes:])
        return out_TNH

    def _rows(self, batch: BatchPlan, start: int, end: int) -> Rows:
        """The part of the batch that one wrapper takes, as if there were no other."""
        qo_indptr = batch.qo_indptr[start : end + 1] - batch.qo_indptr[start]
        kv_indptr = batch.kv_indptr[start : end + 1]
        stage = self._staging
        return Rows(
            qo_indptr=stage.host(qo_indptr),
            kv_indptr=stage.host(kv_indptr - kv_indptr[0]),
            kv_indices=stage.device(batch.kv_indices[kv_indptr[0] : kv_indptr[-1]]),
            last_page_len=stage.host(batch.last_page_len[start:end]),
            kv_lens=stage.host(batch.kv_lens[start:end]).as_subclass(Lengths),
            max_new_tokens=int(batch.extend_lens[start:end].max()),
        )
