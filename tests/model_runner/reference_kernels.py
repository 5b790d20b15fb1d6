"""FlashInfer's real wrappers on the CPU: only the compiled modules below them are replaced, by plain torch.

What runs of FlashInfer: merging of arguments, checks of types, rows and shapes, buffers, its handling of `out`. What
that leaves unproven: the kernels' numbers, the order of streams, races, and what a CUDA graph may capture.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import flashinfer
import torch
import torch.nn.functional as F
from torch import Tensor

PLAN_ARGUMENTS = (20, 21)
"""Of 0.6.18 and of 0.7.4, each with one more behind the others."""
NON_CAUSAL, CAUSAL = 0, 1
NHD = 0
WRAPPERS = (flashinfer.BatchPrefillWithPagedKVCacheWrapper, flashinfer.BatchDecodeWithPagedKVCacheWrapper)


@dataclass(frozen=True)
class Call:
    """One call of FlashInfer's interface: the function as it is declared, and what it was given."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def bound(self) -> dict[str, Any]:
        """The arguments by name, defaults left out; raises `TypeError` where the declaration does not take them."""
        return dict(inspect.signature(self.function).bind(*self.args, **self.kwargs).arguments)


class PrefillModule:
    """What `get_batch_prefill_module` gives for one set of types; reads only what was planned or passed."""

    def __init__(
        self,
        backend: str,
        dtype_q: torch.dtype,
        dtype_kv: torch.dtype,
        dtype_o: torch.dtype,
        dtype_index: torch.dtype,
        head_dim_qk: int,
        head_dim_vo: int,
        pos_encoding: int,
        has_window: bool,
        has_softcap: bool,
        has_fp16_qk: bool,
        has_token_scales: bool = False,
    ) -> None:
        assert backend == "fa2"
        assert not has_token_scales
        assert dtype_q == dtype_kv == dtype_o
        assert dtype_index == torch.int32
        assert (pos_encoding, has_fp16_qk) == (0, False)
        assert head_dim_qk == head_dim_vo
        self.dtype, self.head_dim, self.has_window, self.has_softcap = dtype_q, head_dim_qk, has_window, has_softcap
        self.plans: list[tuple[Tensor, Tensor, Tensor, bool, int]] = []

    def plan(self, *args: object) -> list[int]:
        assert len(args) in PLAN_ARGUMENTS, "another version of FlashInfer hands its kernels other arguments"
        float_workspace, int_workspace, host_workspace, qo_indptr, kv_indptr, kv_lens = args[:6]
        num_rows, batch_size, num_heads, num_kv_heads, page_size, _, head_dim, _, is_causal, window_left = args[6:16]
        assert all(x.dtype == torch.uint8 for x in (float_workspace, int_workspace, host_workspace))
        assert all(x.dtype == torch.int32 and x.device.type == "cpu" for x in (qo_indptr, kv_indptr, kv_lens))
        assert len(qo_indptr) == len(kv_indptr) == batch_size + 1
        assert len(kv_lens) == batch_size
        assert num_rows >= int(qo_indptr[-1])
        assert head_dim == self.head_dim
        assert num_heads % num_kv_heads == 0
        assert (window_left >= 0) == self.has_window
        assert (-(-kv_lens // page_size) == kv_indptr.diff()).all(), "lengths and pages planned do not agree"
        self.plans.append((qo_indptr.clone(), kv_indptr.clone(), kv_lens.clone(), is_causal, window_left))
        return [len(self.plans) - 1]

    def paged_run(self, *args: object) -> None:
        _, _, plan_info, q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, last_page_len, out = args[:11]
        _, mask_mode, layout, window_left, enable_pdl = args[11:16]
        softcap, scale = args[22:24]
        planned_qo, planned_kv, kv_lens, is_causal, planned_window = self.plans[plan_info[0]]
        assert torch.equal(qo_indptr, planned_qo), "run with other rows than were planned"
        assert torch.equal(kv_indptr, planned_kv), "run with other pages than were planned"
        assert (layout, enable_pdl, window_left) == (NHD, False, planned_window)
        assert mask_mode == (CAUSAL if is_causal else NON_CAUSAL)
        assert k_cache.stride() == v_cache.stride()
        assert k_cache.stride(-1) == q.stride(-1) == out.stride(-1) == 1
        assert q.dtype == k_cache.dtype == out.dtype == self.dtype
        assert (softcap > 0) == self.has_softcap
        page_size = k_cache.shape[1]
        for b in range(len(kv_lens)):
            pages = kv_indices[kv_indptr[b] : kv_indptr[b + 1]].long()
            length = (len(pages) - 1) * page_size + int(last_page_len[b])
            assert length == int(kv_lens[b]), "the lengths planned are not those of the pages passed"
            keys, values = (cache[pages].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
            own = slice(int(qo_indptr[b]), int(qo_indptr[b + 1]))
            out[own] = dense_attention(
                q[own], keys, values, scale=scale, softcap=softcap, window_left=window_left, is_causal=is_causal
            )


class SamplingModule:
    """What `get_sampling_module` gives, as far as it is used."""

    def top_k_renorm_probs(
        self, probs: Tensor, top_k: Tensor, top_k_value: int, row_states: Tensor, *, is_deterministic: bool = False
    ) -> Tensor:
        assert probs.dtype == torch.float32
        assert top_k.dtype == torch.int32
        assert row_states.dtype == torch.uint8
        ranks = probs.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        kept = probs * (ranks < top_k[:, None])
        return kept / kept.sum(-1, keepdim=True)

    def top_p_renorm_probs(
        self, probs: Tensor, top_p: Tensor, top_p_value: float, is_deterministic: bool, workspace: Tensor
    ) -> Tensor:
        assert probs.dtype == top_p.dtype == torch.float32
        assert is_deterministic
        values, ids = probs.double().sort(dim=-1, descending=True, stable=True)
        is_kept = values.cumsum(-1) - values < top_p[:, None]
        kept = torch.zeros_like(values).scatter_(-1, ids, values * is_kept)
        return (kept / kept.sum(-1, keepdim=True)).float()


class NormModule:
    """What `get_norm_module` gives, as far as it is used."""

    def rmsnorm(self, out: Tensor, x: Tensor, weight: Tensor, eps: float, enable_pdl: bool) -> None:
        _check_rows(x, out, weight)
        assert not enable_pdl
        scale = (x.float().square().mean(-1, keepdim=True) + eps).rsqrt()
        out.copy_(x.float() * scale * weight.float())

    def fused_add_rmsnorm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, enable_pdl: bool) -> None:
        _check_rows(x, residual, weight)
        assert x.is_contiguous()
        assert residual.is_contiguous()
        residual.add_(x)
        self.rmsnorm(x, residual, weight, eps, enable_pdl)


class RopeModule:
    """What `get_rope_module` gives, as far as it is used."""

    def apply_rope_pos_ids_cos_sin_cache(
        self,
        q: Tensor,
        k: Tensor,
        q_out: Tensor,
        k_out: Tensor,
        cos_sin: Tensor,
        positions: Tensor,
        is_interleaved: bool,
    ) -> None:
        assert not is_interleaved
        assert cos_sin.dtype == torch.float32
        assert positions.dtype in (torch.int32, torch.int64)
        half = cos_sin.shape[1] // 2
        assert q.shape[-1] == k.shape[-1] == 2 * half
        cos, sin = cos_sin[positions][:, None].split(half, dim=-1)
        for x, out in ((q, q_out), (k, k_out)):
            assert x.stride(-1) == 1
            first, second = x.float().split(half, dim=-1)
            out.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))


class ActivationModule:
    """What `get_act_and_mul_module` gives."""

    def __init__(self, name: str) -> None:
        self._name = name

    def silu_and_mul(self, out: Tensor, x: Tensor, enable_pdl: bool) -> None:
        assert self._name == "silu"
        gate, up = x.float().chunk(2, dim=-1)
        out.copy_(F.silu(gate) * up)

    def gelu_tanh_and_mul(self, out: Tensor, x: Tensor, enable_pdl: bool) -> None:
        assert self._name == "gelu_tanh"
        gate, up = x.float().chunk(2, dim=-1)
        out.copy_(F.gelu(gate, approximate="tanh") * up)


def _check_rows(x: Tensor, other: Tensor, weight: Tensor) -> None:
    assert x.dtype == other.dtype == weight.dtype
    assert x.stride(-1) == other.stride(-1) == 1
    assert x.shape[-1] * x.dtype.itemsize % 16 == 0


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, softcap: float, window_left: int, is_causal: bool
) -> Tensor:
    """Attention of the last queries over all keys, in float32; `window_left` as FlashInfer counts it."""
    num_new, length = len(q), len(k)
    group = q.shape[1] // k.shape[1]
    keys, values = (x.float().transpose(0, 1).repeat_interleave(group, dim=0) for x in (k, v))
    scores = q.float().transpose(0, 1) @ keys.transpose(1, 2) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    positions, seen = torch.arange(length - num_new, length)[:, None], torch.arange(length)
    hidden = torch.zeros(num_new, length, dtype=torch.bool)
    if is_causal:
        hidden |= seen > positions
    if window_left >= 0:
        hidden |= seen < positions - window_left
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values).transpose(0, 1)


@contextmanager
def reference_kernels(*, is_recorded: bool = True) -> Iterator[list[Call]]:
    """Everything inside runs on the reference; gives the calls of FlashInfer's interface as they are made, if so."""
    calls: list[Call] = []
    module = functools.cache(PrefillModule)
    with (
        mock.patch.object(torch, "empty", _without_pinning(torch.empty)),
        mock.patch.object(flashinfer.prefill, "get_batch_prefill_module", module),
        mock.patch.object(flashinfer.decode, "get_batch_prefill_module", module),
        mock.patch.object(flashinfer.sampling, "get_sampling_module", SamplingModule),
        mock.patch.object(flashinfer.norm, "_USE_CUDA_NORM", True),
        mock.patch.object(flashinfer.norm, "get_norm_module", NormModule),
        mock.patch.object(flashinfer.rope, "get_rope_module", RopeModule),
        mock.patch.object(flashinfer.activation, "get_act_and_mul_module", ActivationModule),
        ExitStack() as spies,
    ):
        for wrapper in WRAPPERS if is_recorded else ():
            spies.enter_context(mock.patch.multiple(wrapper, **_spies(wrapper, calls)))
        yield calls


def _without_pinning(empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(empty)
    def unpinned(*args: object, **kwargs: object) -> Tensor:
        kwargs.pop("pin_memory", None)
        return empty(*args, **kwargs)

    return unpinned


def _spies(wrapper: type, calls: list[Call]) -> dict[str, Callable[..., Any]]:
    """Methods that write down how they are called; `plan` of decode declares nothing, what it hands on to does."""

    def spy(name: str) -> Callable[..., Any]:
        real = getattr(wrapper, name)
        declared = getattr(wrapper, "_plan_impl", real) if name == "plan" else real

        @functools.wraps(real)
        def recorded(*args: object, **kwargs: object) -> object:
            calls.append(Call(f"{wrapper.__name__}.{name}", declared, args, kwargs))
            return real(*args, **kwargs)

        return recorded

    return {name: spy(name) for name in ("__init__", "plan", "run")}
