"""A test bed: a runner with pages to give out, driven with plans as the scheduler drives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from msgspec import structs

from model_runner.attention.backend import AttentionBackend, AttentionSpec, GraphBackend
from model_runner.attention.cpu_backend import CpuAttention
from model_runner.attention.torch_backend import TorchAttention
from model_runner.batch import build_batch
from model_runner.device_sampler import DeviceSampler
from model_runner.graphs import Capture, DecodeGraphs
from model_runner.implementation import attention_spec
from model_runner.kernels.library import Library
from model_runner.models.decoder import Decoder
from model_runner.models.model import Model
from model_runner.rows import RowTable
from model_runner.runner import Runner
from wire.messages.encoding import bytes_to_ids, ids_to_bytes, split_entries, unpack_logprobs
from wire.messages.from_runner import StepResult
from wire.messages.to_runner import Admission, Chunk, PageCopy, StepPlan
from wire.sampling import SamplingParams

TOLERANCE = 1e-4
"""How far logprobs of the same tokens may lie apart in float32. Kernels with one order of sums make it zero."""

GREEDY = SamplingParams(temperature=0.0, num_top_logprobs=0, seed=0)


@dataclass(frozen=True)
class Prompt:
    """What one row starts from; `pages` hold KV of the first `num_cached_tokens` tokens.

    The last `num_output_tokens` are the output of a row that resumes.
    """

    token_ids: Sequence[int]
    params: SamplingParams = GREEDY
    pages: tuple[int, ...] = ()
    num_cached_tokens: int = 0
    num_output_tokens: int = 0


@dataclass
class Output:
    """What one row gave, and the pages that hold its KV."""

    pages: tuple[int, ...]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[bytes] = field(default_factory=list)
    broken: bool = False

    def first(self, num_tokens: int) -> Output:
        """The output as it was after `num_tokens`."""
        return replace(self, token_ids=self.token_ids[:num_tokens], logprobs=self.logprobs[:num_tokens])


class Bed:
    """Runs prompts to a fixed number of tokens; pages are given out in a scattered order and never given back.

    Attention is torch's, or that of a library of kernels.
    """

    def __init__(
        self,
        model: Model,
        *,
        num_pages: int = 256,
        page_tokens: int = 16,
        spec: AttentionSpec | None = None,
        library: Library | None = None,
        new_backend: Callable[[AttentionSpec], AttentionBackend[Any]] = TorchAttention,
        device_sampler: DeviceSampler | None = None,
        graph_sizes: Sequence[int] = (),
        capture: Capture | None = None,
    ) -> None:
        self.model = model
        self.page_tokens = page_tokens
        if spec is None:
            assert isinstance(model, Decoder), "a model that isn't ours comes with its attention's shape"
            spec = attention_spec(model.config, model.dtype, page_tokens=page_tokens)
        backend = new_backend(spec) if library is None else CpuAttention(spec, library)
        self.pool = backend.make_kv_pool(num_pages)
        graphs = None
        if capture is not None:
            assert isinstance(backend, GraphBackend)
            with torch.inference_mode():
                graphs = DecodeGraphs(
                    model, backend, self.pool, sizes=graph_sizes, max_row_pages=num_pages, capture=capture
                )
        self.runner: Runner[Any] = Runner(
            model,
            backend,
            self.pool,
            ranks=model.ranks if isinstance(model, Decoder) else None,
            device_sampler=device_sampler,
            graphs=graphs,
        )
        order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(1))
        self.free_pages: list[int] = order.tolist()
        self._step = 0

    def execute(self, plan: StepPlan) -> StepResult:
        """Run a plan under the next step number."""
        plan = structs.replace(plan, step=self._step)
        self._step += 1
        return self.runner.execute(plan)

    def copy_page(self, source: int, destination: int) -> None:
        """Copy one page."""
        self.execute(StepPlan(step=0, copies=(PageCopy(source=source, destination=destination),)))

    def all_logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Logits behind every token of a prompt computed in one piece."""
        table = RowTable(num_pages=self.pool.num_pages, page_tokens=self.page_tokens)
        pages = ids_to_bytes(range(-(-len(token_ids) // self.page_tokens)))
        table.admit(Admission(row=0, request_id="", sampling=GREEDY, num_cached_tokens=0, page_ids=pages))
        plan = StepPlan(step=0, chunks=(Chunk(row=0, token_ids=ids_to_bytes(token_ids), is_sampled=True),))
        batch = build_batch(table, plan, vocabulary=self.model.vocabulary)
        return self.model.logits(self.runner.forward(batch))

    def generate(self, prompts: Sequence[Prompt], num_tokens: int, *, chunk_tokens: int | None = None) -> list[Output]:
        """Prefill all prompts together, `chunk_tokens` a step each, then decode them together."""
        outputs = []
        admissions = []
        for row, prompt in enumerate(prompts):
            num_pages = -(-(len(prompt.token_ids) + num_tokens) // self.page_tokens) - len(prompt.pages)
            pages = (*prompt.pages, *(self.free_pages.pop() for _ in range(num_pages)))
            outputs.append(Output(pages=pages))
            num_prompt = len(prompt.token_ids) - prompt.num_output_tokens
            params = prompt.params
            scored_from = params.prompt_logprobs_from
            admissions.append(
                Admission(
                    row=row,
                    request_id=str(row),
                    sampling=params,
                    num_cached_tokens=prompt.num_cached_tokens,
                    page_ids=ids_to_bytes(pages),
                    num_prompt_tokens=num_prompt,
                    first_logprob=None if scored_from is None else max(1, scored_from),
                    prompt_ids=ids_to_bytes(prompt.token_ids[:num_prompt]) if params.needs_prompt_ids else b"",
                    output_ids=ids_to_bytes(prompt.token_ids[num_prompt:]) if params.needs_output_ids else b"",
                )
            )
        self.execute(StepPlan(step=0, admissions=tuple(admissions)))
        done = [prompt.num_cached_tokens for prompt in prompts]
        while any(len(output.token_ids) < num_tokens for output in outputs):
            decodes: list[int] = []
            chunks: list[Chunk] = []
            for row, prompt in enumerate(prompts):
                left = len(prompt.token_ids) - done[row]
                if left > 0:
                    count = min(left, chunk_tokens or left)
                    chunk = prompt.token_ids[done[row] : done[row] + count]
                    chunks.append(Chunk(row=row, token_ids=ids_to_bytes(chunk), is_sampled=count == left))
                    done[row] += count
                elif len(outputs[row].token_ids) < num_tokens:
                    decodes.append(row)
            result = self.execute(StepPlan(step=0, decodes=ids_to_bytes(decodes), chunks=tuple(chunks)))
            self._take(result, decodes + [chunk.row for chunk in chunks if chunk.is_sampled], outputs)
        self.execute(StepPlan(step=0, released=tuple(range(len(prompts)))))
        return outputs

    def _take(self, result: StepResult, rows: Sequence[int], outputs: Sequence[Output]) -> None:
        broken = {one.row for one in result.broken}
        for scored in result.prompt_logprobs:
            outputs[scored.row].prompt_logprobs += split_entries(scored.entries, scored.num_tokens)
        logprobs = result.logprobs or (b"",) * len(rows)
        for row, token_id, entry in zip(rows, bytes_to_ids(result.token_ids), logprobs, strict=True):
            outputs[row].token_ids.append(token_id)
            outputs[row].broken |= row in broken
            if entry:
                outputs[row].logprobs.append(unpack_logprobs(entry)[0])


def greedy(token_ids: Sequence[int], **changes: object) -> Prompt:
    """A prompt with greedy sampling and logprobs."""
    return replace(Prompt(token_ids), **changes)  # type: ignore[arg-type]


def assert_same(one: Output, other: Output) -> None:
    """The same tokens, with logprobs within `TOLERANCE`."""
    assert one.token_ids == other.token_ids
    distances = [abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)]
    assert max(distances) <= TOLERANCE
