"""How fast a loaded model prefills and decodes, and what this machine would allow at most. Knows no server."""

# The figures are tokens in a second; a step's share of the scheduler, the sockets and HTTP is not in them.

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from msgspec import structs

from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission, Chunk, PageCopy, StepPlan
from wire.sampling import SamplingParams

from .errors import StartError
from .invariant import BlockedLinear
from .kernels.library import Int, Library, Pointer, huge_tensor
from .kernels.linear import PackedWeight
from .layers import Linear, PackedLinear
from .load import Loaded
from .models.decoder import Decoder, num_parameters
from .runner import Launched

_READ_BYTES = 256 << 20
_ROUNDS = 1_000_000
_REPEATS = 5
_CHUNK_TOKENS = 512
_GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What all threads together reach: reading memory in a stream, multiplying and adding float32 in registers."""

    read_gb_s: float
    multiply_gflop_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One measurement; `limit_tok_s` is what reading weights and KV once, or multiplying, would leave time for."""

    name: str
    tok_s: float
    limit_tok_s: float


def measure_ceilings(library: Library) -> Ceilings:
    """The best of a few runs: a busy neighbour only ever takes away."""
    read_all = library.function("axil_read_all", Pointer, Int, result=Int)
    multiply_all = library.function("axil_multiply_all", Int, result=Int)
    memory = huge_tensor((_READ_BYTES,), torch.uint8).fill_(1)
    read_s, multiply_s = [], []
    num_operations = 0
    for _ in range(_REPEATS):
        started = time.perf_counter()
        read_all(memory.data_ptr(), _READ_BYTES)
        read_s.append(time.perf_counter() - started)
        started = time.perf_counter()
        num_operations = multiply_all(_ROUNDS)
        multiply_s.append(time.perf_counter() - started)
    return Ceilings(read_gb_s=_READ_BYTES / min(read_s) / 1e9, multiply_gflop_s=num_operations / min(multiply_s) / 1e9)


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
        self._weight_bytes = _weight_bytes(model)
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
        limit = self._ceilings.multiply_gflop_s * 1e9 / (2 * self._parameters(with_head=False))
        return Rung(name=f"prefill {context}", tok_s=context / elapsed_s, limit_tok_s=limit)

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
        bytes_read = self._weight_bytes + batch * context * self._kv_bytes
        operations = 2 * batch * self._parameters(with_head=True)
        limit_s = max(
            bytes_read / (self._ceilings.read_gb_s * 1e9), operations / (self._ceilings.multiply_gflop_s * 1e9)
        )
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

    def _parameters(self, *, with_head: bool) -> int:
        config = self._model.config
        head = config.vocabulary * config.hidden_size
        body = num_parameters(config) - head * (2 - config.is_embedding_tied)
        return body + head if with_head else body


def _weight_bytes(model: Decoder) -> int:
    """What a step reads of the weights."""
    linears = [model.head]
    for layer in model.layers:
        linears += (layer.qkv, layer.output, layer.gate_up, layer.down)
    num_bytes = 0
    for linear in linears:
        match linear:
            case PackedWeight():
                num_bytes += linear.memory.nbytes
            case Linear() | PackedLinear() | BlockedLinear():
                num_bytes += linear.weight.nbytes
    return num_bytes
