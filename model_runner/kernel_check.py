"""Do the compiled kernels compute right on this CPU? A few tens of milliseconds, beside plain torch in float64.

A CPU that we have not seen, an emulator or a compiler's fault shows here, before it shows as a wrong answer. The tests
look far more closely; this is what can be asked at a first start. Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission, Chunk, StepPlan
from wire.sampling import SamplingParams

from .attention.backend import AttentionSpec
from .attention.cpu_backend import CpuAttention
from .batch import build_batch
from .kernels.library import Library
from .kernels.linear import Activations, Format, Gate, Kind, LinearKernels
from .kernels.logit_rules import LogitChanges, LogitKernels
from .kernels.ops import KernelOps
from .kernels.sampler import SamplerKernels
from .layers import RMSNorm
from .logit_rules import changed
from .rows import RowTable

_STEPS = {Format.FLOAT32: 1e-6, Format.BFLOAT16: 2**-8, Format.INT8: 1 / 100, Format.INT4: 1 / 6}
"""How far a stored weight may be from the one written, as a share of the largest."""

_PAGE_TOKENS, _PREFIX, _EXTEND = 16, 300, 21


def faults(library: Library) -> list[str]:
    """What the kernels of `library` compute wrongly, in words; nothing when all is right."""
    kinds = LinearKernels(library).kinds
    checks: dict[str, Callable[[], bool]] = {
        **{f"linear layers ({kind.name})": lambda kind=kind: _multiplies(library, kind) for kind in kinds},  # type: ignore[misc]
        "attention over float32": lambda: _attends(library, torch.float32),
        "attention over bfloat16": lambda: _attends(library, torch.bfloat16),
        "linear layers with a gate": lambda: _opens(library),
        "norms": lambda: _norms(library),
        "changes of logits": lambda: _changes(library),
        "the choice of tokens": lambda: _chooses(library),
    }
    return [name for name, is_right in checks.items() if not is_right()]


def _multiplies(library: Library, kind: Kind) -> bool:
    """Weights are kept nearly as written, products are theirs, and a token's are the same alone and in a batch."""
    kernels = LinearKernels(library)
    weight = kernels.make(49, 96, kind)
    written, x = _random(49, 96, seed=1), _random(100, 96, seed=2)
    weight.write(0, written)
    stored = weight.rows(torch.arange(49), torch.float32)
    if (stored - written).abs().max() > _STEPS[kind.format] * written.abs().max():
        return False
    is_rounded = kind.activations is not Activations.AS_THEY_ARE or (
        kind.format is Format.BFLOAT16 and kernels.has_bfloat16_products
    )
    expected = (x.double() @ stored.double().T).float()
    products = weight(x)
    is_near = torch.allclose(products, expected, atol=0.3 if is_rounded else 1e-4, rtol=1e-4)
    return is_near and torch.equal(torch.cat([weight(x[i : i + 1]) for i in range(len(x))]), products)


def _opens(library: Library) -> bool:
    weight = LinearKernels(library).make(49, 32, Kind(format=Format.FLOAT32), gate=Gate.SILU)
    gate, up, x = _random(49, 32, seed=1), _random(49, 32, seed=2), _random(13, 32, seed=3)
    weight.write(0, gate, half=0)
    weight.write(0, up, half=1)
    expected = F.silu(x.double() @ gate.double().T) * (x.double() @ up.double().T)
    return torch.allclose(weight(x), expected.float(), atol=1e-4)


def _attends(library: Library, dtype: torch.dtype) -> bool:
    """A row's new tokens attend to those stored before, across pages and splits, and to no slot that nobody wrote."""
    spec = AttentionSpec(
        num_layers=1,
        num_heads=6,
        num_kv_heads=2,
        head_dim=64,
        scale=0.125,
        dtype=dtype,
        page_tokens=_PAGE_TOKENS,
        softcap=None,
        windows=(None,),
    )
    length = _PREFIX + _EXTEND
    q, k, v = (_random(length, heads, 64, seed=heads + i) for i, heads in enumerate((6, 2, 2)))
    backend, num_pages = CpuAttention(spec, library), -(-length // _PAGE_TOKENS)
    backend.make_kv_pool(num_pages + 1).layers[0].fill_(float("nan"))
    table = RowTable(num_pages=num_pages + 1, page_tokens=_PAGE_TOKENS)
    pages = ids_to_bytes(reversed(range(num_pages)))
    table.admit(Admission(row=0, request_id="", sampling=SamplingParams(), num_cached_tokens=0, page_ids=pages))
    for part in (slice(0, _PREFIX), slice(_PREFIX, length)):
        chunk = Chunk(row=0, token_ids=ids_to_bytes([1] * (part.stop - part.start)), is_sampled=True)
        batch = build_batch(table, StepPlan(step=0, chunks=(chunk,)), vocabulary=2)
        out = backend.forward(0, q[part], k[part], v[part], backend.begin_step(batch), torch.empty_like(q[part]))
        table.lengths[0] = part.stop
    keys, values = (x.to(dtype).double().transpose(0, 1).repeat_interleave(3, dim=0) for x in (k, v))
    scores = q[_PREFIX:].double().transpose(0, 1) @ keys.transpose(1, 2) * spec.scale
    mask = torch.ones(_EXTEND, length, dtype=torch.bool).tril(diagonal=_PREFIX)
    expected = (scores.masked_fill(~mask, float("-inf")).softmax(-1) @ values).transpose(0, 1).float()
    return torch.allclose(out, expected, atol=0.02 if dtype == torch.bfloat16 else 1e-5)


def _norms(library: Library) -> bool:
    ops, norm = KernelOps(library), RMSNorm(torch.rand(33, generator=torch.Generator().manual_seed(1)), 1e-5)
    hidden, added = _random(3, 33, seed=1), _random(3, 33, seed=2)
    expected = F.rms_norm((hidden + added).double(), (33,), norm.weight.double(), 1e-5).float()
    return torch.allclose(ops.add_norm(hidden, added, norm), expected, atol=1e-5)


def _changes(library: Library) -> bool:
    """Penalties, biases and ids made impossible give the bits that torch gives; other rows stay."""
    ids, logits = np.array([1, 7, 40, 99], np.int64), 3 * _random(2, 103, seed=5)
    changes = LogitChanges(
        seen_ids=ids,
        counts=np.array([0, 1, 2, 3], np.float32),
        repetition=1.3,
        frequency=0.7,
        presence=-0.4,
        biased_ids=ids[1:],
        biases=np.array([5, -100, 0.1], np.float32),
        forbidden_ids=ids[:1],
    )
    expected = changed(logits, {1: changes})
    return torch.equal(LogitKernels(library).changed(logits, {1: changes}), expected)


def _chooses(library: Library) -> bool:
    """The best token when greedy, one that is allowed otherwise, and the logarithm of the mass."""
    sampler, logits = SamplerKernels(library), 3 * _random(2, 1003, seed=4)
    params = [SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, top_k=3, seed=1)]
    first, second = sampler.choose(logits, params, np.array([1, 2], np.int64)).tolist()
    log_mass, _, ids = sampler.top(logits, 5)
    return (
        first == int(logits[0].argmax())
        and second in logits[1].topk(3).indices.tolist()
        and torch.equal(ids, logits.topk(5).indices)
        and torch.allclose(log_mass, logits.double().logsumexp(1, keepdim=True).float(), atol=1e-4)
    )


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
