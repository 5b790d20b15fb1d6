"""How fast a loaded model prefills and decodes, and what this machine would allow at most. Knows no server."""

# The figures are tokens in a second; a step's share of the scheduler, the sockets and HTTP is not in them.

from __future__ import annotations

import ctypes
import enum
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from msgspec import structs
from torch import Tensor

from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission, Chunk, PageCopy, StepPlan
from wire.sampling import SamplingParams

from .errors import StartError
from .invariant import BlockedLinear
from .kernels.library import Int, Library, Pointer, huge_tensor
from .kernels.linear import Activations, Format, Kind, PackedWeight
from .layers import AnyLinear, Linear, PackedLinear
from .load import Loaded
from .models.decoder import Decoder
from .runner import Launched

_READ_BYTES = 256 << 20
_ROUNDS = 4_000_000
_REPEATS = 5
_CHUNK_TOKENS = 512
_GREEDY = SamplingParams(temperature=0.0)


class Products(enum.IntEnum):
    """What the kernels multiply weights in; the values are the C code's (`csrc/ceilings.cpp`)."""

    FLOAT32 = 0
    BFLOAT16 = 1
    BYTES = 2
    NIBBLES = 3

    @staticmethod
    def of(kind: Kind) -> Products:
        """Weights of few bits are widened to what tokens are."""
        if kind.activations is Activations.BYTES:
            return Products.NIBBLES if kind.format is Format.INT4 else Products.BYTES
        is_bfloat16 = kind.format is Format.BFLOAT16 or kind.activations is Activations.BFLOAT16
        return Products.BFLOAT16 if is_bfloat16 else Products.FLOAT32


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What all threads together reach: reading memory in a stream, multiplying and adding in registers."""

    read_gb_s: float
    multiply_gflop_s: float
    """Of float32, or of whatever weights are multiplied in that the kernels don't hold."""
    kernels_gflop_s: Mapping[Products, float] = field(default_factory=dict)
    """Of what else the kernels multiply weights in."""

    def gflop_s(self, linear: AnyLinear) -> float:
        """What a layer's products could reach."""
        products = Products.of(linear.kind) if isinstance(linear, PackedWeight) else Products.FLOAT32
        return self.kernels_gflop_s.get(products, self.multiply_gflop_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One measurement; `limit_tok_s` is what reading weights and KV once, or multiplying, would leave time for."""

    name: str
    tok_s: float
    limit_tok_s: float


def measure_reading(library: Library) -> float:
    """GB/s; the best of a few runs, as a busy neighbour only ever takes away."""
    read_all = library.function("axil_read_all", Pointer, Int, result=Int)
    memory = huge_tensor((_READ_BYTES,), torch.uint8).fill_(1)
    read_gb_s = 0.0
    for _ in range(_REPEATS):
        started = time.perf_counter()
        read_all(memory.data_ptr(), _READ_BYTES)
        read_gb_s = max(read_gb_s, _READ_BYTES / (time.perf_counter() - started) / 1e9)
    return read_gb_s


def measure_ceilings(library: Library) -> Ceilings:
    """Reading and multiplying, each the best of a few runs."""
    multiply_all = library.function("axil_multiply_all", ctypes.c_int32, Int, result=Int)
    gflop_s = dict.fromkeys(Products, 0.0)
    for _ in range(_REPEATS):
        for products in Products:
            started = time.perf_counter()
            num_operations = multiply_all(products, _ROUNDS)
            gflop_s[products] = max(gflop_s[products], num_operations / (time.perf_counter() - started) / 1e9)
    return Ceilings(
        read_gb_s=measure_reading(library), multiply_gflop_s=gflop_s.pop(Products.FLOAT32), kernels_gflop_s=gflop_s
    )


def climb(
    loaded: Loaded,
    ceilings: Ceilings,
    *,
    contexts: Sequence[int],
    batches: Sequence[int],
    num_steps: int,
    is_ahead: bool = False,
) -> Iterator[Rung]:
    """Prefill each context once, then decode behind it in each batch; medians of the steps.

    With `is_ahead`, means of steps that are launched before the tokens of the one before are waited for.

    Raises:
        StartError: the pool does not hold the largest batch, or the model is not in our own code.
    """
    model = loaded.model
    if not isinstance(model, Decoder):
        raise StartError("only models in axil's own code are measured; leave out --model-impl transformers")
    ladder = _Ladder(loaded, model, ceilings, num_steps)
    step_s = ladder.steps_ahead if is_ahead else ladder.steps_one_by_one
    ladder.check(max(contexts), max(batches))
    for context in contexts:
        yield ladder.prefill(context)
        for batch in batches:
            yield ladder.decode(context, batch, step_s)
        ladder.clear()


class _Ladder:
    """Rows and pages of a runner that nobody else uses; row 0 holds the context that the others are copied from."""

    def __init__(self, loaded: Loaded, model: Decoder, ceilings: Ceilings, num_steps: int) -> None:
        self._runner, self._ready, self._model = loaded.runner, loaded.ready, model
        self._ceilings, self._num_steps = ceilings, num_steps
        self._body = [
            linear for layer in model.layers for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)
        ]
        self._kv_bytes = loaded.kv_bytes_per_token

    def check(self, context: int, batch: int) -> None:
        needed = (batch + 1) * self._num_pages(context)
        if needed > self._ready.num_pages:
            raise StartError(
                f"{batch} rows of {context} tokens need a pool of {needed * self._ready.page_tokens} tokens; "
                "set --max-total-tokens to that, or ask for fewer"
            )

    def prefill(self, context: int) -> Rung:
        draw = random.Random(context)
        ids = [draw.randrange(self._model.vocabulary) for _ in range(context)]
        self._step(StepPlan(step=0, admissions=(self._admission(0, 0, context),)))
        elapsed_s = 0.0
        for start in range(0, context, _CHUNK_TOKENS):
            part = ids[start : start + _CHUNK_TOKENS]
            is_last = start + len(part) == context
            elapsed_s += self._step(
                StepPlan(step=0, chunks=(Chunk(row=0, token_ids=ids_to_bytes(part), is_sampled=is_last),))
            )
        limit_s = sum(map(self._multiply_s, self._body))
        return Rung(name=f"prefill {context}", tok_s=context / elapsed_s, limit_tok_s=1 / limit_s)

    def decode(self, context: int, batch: int, step_s: Callable[[StepPlan], float]) -> Rung:
        num_pages = self._num_pages(context)
        rows = range(1, batch + 1)
        copies = tuple(
            PageCopy(source=page, destination=row * num_pages + page) for row in rows for page in range(num_pages)
        )
        admissions = tuple(self._admission(row, context, context) for row in rows)
        self._step(StepPlan(step=0, copies=copies, admissions=admissions))
        elapsed_s = step_s(StepPlan(step=0, decodes=ids_to_bytes(rows)))
        self._step(StepPlan(step=0, released=tuple(rows)))
        linears = (*self._body, self._model.head)
        bytes_read = sum(map(_num_bytes, linears)) + batch * context * self._kv_bytes
        limit_s = max(bytes_read / (self._ceilings.read_gb_s * 1e9), batch * sum(map(self._multiply_s, linears)))
        return Rung(name=f"decode {context} x {batch}", tok_s=batch / elapsed_s, limit_tok_s=batch / limit_s)

    def steps_one_by_one(self, plan: StepPlan) -> float:
        """Seconds of a step; the first one finds caches and threads cold."""
        return statistics.median([self._step(plan) for _ in range(self._num_steps)][1:])

    def steps_ahead(self, plan: StepPlan) -> float:
        """Seconds of a step, the next one being launched while it runs."""
        self._step(plan)
        started = time.perf_counter()
        running = self._launch(plan)
        for _ in range(self._num_steps - 2):
            following = self._launch(plan)
            running.result()
            running = following
        running.result()
        return (time.perf_counter() - started) / (self._num_steps - 1)

    def clear(self) -> None:
        self._step(StepPlan(step=0, released=(0,)))

    def _num_pages(self, context: int) -> int:
        return -(-(context + self._num_steps) // self._ready.page_tokens)

    def _admission(self, row: int, num_cached: int, context: int) -> Admission:
        num_pages = self._num_pages(context)
        return Admission(
            row=row,
            request_id=str(row),
            sampling=_GREEDY,
            num_cached_tokens=num_cached,
            page_ids=ids_to_bytes(range(row * num_pages, (row + 1) * num_pages)),
        )

    def _step(self, plan: StepPlan) -> float:
        started = time.perf_counter()
        self._launch(plan).result()
        return time.perf_counter() - started

    def _launch(self, plan: StepPlan) -> Launched:
        return self._runner.launch(structs.replace(plan, step=self._runner.num_steps))

    def _multiply_s(self, linear: AnyLinear) -> float:
        return 2 * _num_weights(linear) / (self._ceilings.gflop_s(linear) * 1e9)


def _num_bytes(linear: AnyLinear) -> int:
    """What a step reads of the weights."""
    return linear.memory.nbytes if isinstance(linear, PackedWeight) else _weight(linear).nbytes


def _num_weights(linear: AnyLinear) -> int:
    if isinstance(linear, PackedWeight):
        return (1 + int(linear.is_gated)) * linear.num_outputs * linear.num_columns
    return _weight(linear).numel()


def _weight(linear: AnyLinear) -> Tensor:
    assert isinstance(linear, Linear | PackedLinear | BlockedLinear), "a decoder's are of these, or the kernels'"
    return linear.weight
