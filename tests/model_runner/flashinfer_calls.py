"""Every call of FlashInfer that we make, as it is made, and whether a version of FlashInfer declares it so.

python -m tests.model_runner.flashinfer_calls record calls.json   # with the version that the tests run
PYTHONPATH=newer/site-packages:. python -m tests.model_runner.flashinfer_calls check calls.json
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

FUNCTIONS = {
    "flashinfer.norm": ("rmsnorm", "fused_add_rmsnorm"),
    "flashinfer.activation": ("silu_and_mul", "gelu_tanh_and_mul"),
    "flashinfer.rope": ("apply_rope_with_cos_sin_cache_inplace",),
    "flashinfer.sampling": ("top_k_renorm_probs", "top_p_renorm_probs"),
}
"""What we call besides the attention wrappers, by the module that declares it."""

Shape = tuple[str, int, tuple[str, ...]]
"""A call: what is called, how many arguments have no name, the names of the others."""


@contextmanager
def recorded() -> Iterator[set[Shape]]:
    """The calls of `FUNCTIONS` that are made inside."""
    from model_runner import flashinfer_ops

    calls: set[Shape] = set()

    def spy(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: object, **kwargs: object) -> object:
            calls.add((name, len(args), tuple(sorted(kwargs))))
            return function(*args, **kwargs)

        return called

    with ExitStack() as stack:
        for module, functions in FUNCTIONS.items():
            for function in functions:
                home = importlib.import_module(module)
                spied = spy(f"{module}:{function}", getattr(home, function))
                place = flashinfer_ops if hasattr(flashinfer_ops, function) else home
                stack.enter_context(mock.patch.object(place, function, spied))
        yield calls


def make_calls() -> set[Shape]:
    """All of them: a batch through attention's wrappers, each op, each filter."""
    import torch

    from model_runner.attention.flashinfer_backend import FlashInferAttention
    from model_runner.device_sampler import flashinfer_filters
    from model_runner.flashinfer_ops import FlashInferOps
    from model_runner.layers import RMSNorm, make_rotary
    from model_runner.ops import Heads

    from .paged_cases import Row, assert_attends, make_case, make_spec
    from .reference_kernels import reference_kernels

    half = torch.bfloat16
    with reference_kernels() as wrapper_calls, recorded() as calls:
        spec = make_spec(windows=(None, 9), dtype=half)
        backend = FlashInferAttention(spec, torch.device("cpu"))
        rows = [Row(34, 1), Row(5, 1), Row(0, 33), Row(40, 9)]
        case = make_case(spec, backend, rows, num_decodes=2)
        assert_attends(backend, case, tolerance=1e-2)
        decodes = make_case(spec, backend, [Row(9, 1), Row(3, 1)], num_decodes=2)
        backend.begin_capture(decodes.batch, max_pages=8)
        ops, norm = FlashInferOps(), RMSNorm(torch.ones(64, dtype=half), 1e-6)
        hidden = torch.randn(3, 64).to(half)
        ops.add_norm(hidden, None, norm)
        ops.add_norm(hidden, hidden.clone(), norm)
        angles = ops.angles(make_rotary(64, 10_000.0, None, half), torch.arange(3))
        heads = Heads(num_heads=2, num_kv_heads=1, head_dim=64, q_norm=norm, k_norm=norm)
        ops.rotated_heads(torch.randn(3, 4 * 64).to(half), heads, angles)
        for activation in ("silu", "gelu_tanh"):
            ops.gated(torch.randn(3, 128).to(half), activation)
        filters, probs = flashinfer_filters(), torch.full((2, 8), 0.125)
        filters.top_k(probs, torch.tensor([3, 4], dtype=torch.int32))
        filters.top_p(probs, torch.tensor([0.5, 0.6]))
    for call in wrapper_calls:
        calls.add((f"flashinfer:{call.name}", len(call.args), tuple(sorted(call.kwargs))))
    return calls


def undeclared(calls: set[Shape]) -> list[str]:
    """What the FlashInfer that is imported here does not declare as it is called."""
    problems = []
    for name, num_args, keywords in sorted(calls):
        try:
            inspect.signature(_declared(name)).bind(*num_args * [None], **dict.fromkeys(keywords))
        except (TypeError, AttributeError) as error:
            problems.append(f"{name}: {error}")
    return problems


def _declared(name: str) -> Callable[..., Any]:
    """The function that declares the arguments: decode's `plan` hands them on to another one."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, "_plan_impl", None) or getattr(found, part) if part == "plan" else getattr(found, part)
    declared: Callable[..., Any] = found
    return declared


def main() -> int:
    command, path = sys.argv[1], Path(sys.argv[2])
    if command == "record":
        path.write_text(json.dumps(sorted(make_calls())))
        return 0
    import flashinfer

    calls = {(name, num_args, tuple(keywords)) for name, num_args, keywords in json.loads(path.read_text())}
    problems = undeclared(calls)
    print(f"flashinfer {flashinfer.__version__}: {len(calls)} calls, {len(problems)} undeclared", *problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
