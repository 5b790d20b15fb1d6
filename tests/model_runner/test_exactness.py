"""With the kernels a token's logits are the same bits however its prompt was cut, cached or batched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model_runner.attention.cpu_backend import CpuAttention
from model_runner.batch import build_batch
from model_runner.implementation import attention_spec
from model_runner.kernels.library import Library
from model_runner.kernels.ops import KernelOps
from model_runner.models.decoder import Decoder
from model_runner.rows import RowTable
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission, Chunk, StepPlan
from wire.sampling import SamplingParams

from .conftest import TINY_CONFIGS, load_directory, load_embedded, save_tiny


class Steps:
    """A model and pages, driven chunk by chunk; `last_logits` are those of the last step's rows."""

    last_logits: Tensor

    def __init__(self, model: Decoder, library: Library, num_pages: int = 200) -> None:
        self.model = model
        self.backend = CpuAttention(attention_spec(model.config, model.dtype, page_tokens=16), library)
        self.pool = self.backend.make_kv_pool(num_pages)
        self.table = RowTable(num_pages=num_pages, page_tokens=16)
        self.free = torch.randperm(num_pages, generator=torch.Generator().manual_seed(1)).tolist()

    def admit(self, row: int, num_tokens: int, *, cached: int = 0, pages: Sequence[int] = ()) -> list[int]:
        """Begin a row with pages of its own behind the given ones; returns all of them."""
        whole = [*pages, *(self.free.pop() for _ in range(-(-num_tokens // 16) - len(pages)))]
        self.table.admit(
            Admission(
                row=row,
                request_id=str(row),
                sampling=SamplingParams(),
                num_cached_tokens=cached,
                page_ids=ids_to_bytes(whole),
            )
        )
        return whole

    @torch.inference_mode()
    def run(self, chunks: dict[int, Sequence[int]]) -> dict[int, Tensor]:
        """One step; by row the logits behind every token, or the hidden states where the vocabulary is large."""
        plan = StepPlan(
            step=0,
            chunks=tuple(Chunk(row=row, token_ids=ids_to_bytes(ids), is_sampled=True) for row, ids in chunks.items()),
        )
        batch = build_batch(self.table, plan, vocabulary=self.model.vocabulary)
        handle = self.backend.begin_step(batch)
        hidden = self.model.forward(batch.token_ids_T, batch.positions_T, self.backend, handle)
        # Of a large vocabulary every row's last logits are enough, beside all tokens' states.
        ends = [end - 1 for end in batch.qo_indptr[1:].tolist()]
        logits = self.model.logits(hidden) if self.model.vocabulary < 1000 else hidden
        self.last_logits = self.model.logits(hidden[ends].clone())
        for row, ids in chunks.items():
            self.table.lengths[row] += len(ids)
        return dict(zip(chunks, logits.split([len(ids) for ids in chunks.values()]), strict=True))

    def in_chunks(self, row: int, ids: Sequence[int], size: int, *, cached: int = 0) -> Tensor:
        """All logits of a row that was admitted, some tokens a step."""
        return torch.cat([self.run({row: ids[at : at + size]})[row] for at in range(cached, len(ids), size)])


def _ids(num_tokens: int, vocabulary: int, seed: int) -> list[int]:
    ids: list[int] = torch.randint(0, vocabulary, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids


def _check(model: Decoder, library: Library, prompts: list[list[int]]) -> None:
    first = prompts[0]
    steps = Steps(model, library)
    pages = steps.admit(0, len(first))
    cold = steps.run({0: first})[0]
    cold_logits = steps.last_logits
    for row, size in enumerate((16, 64, 512), 1):
        steps.admit(row, len(first))
        assert torch.equal(steps.in_chunks(row, first, size), cold), f"chunks of {size}"
        assert torch.equal(steps.last_logits, cold_logits), f"chunks of {size}"
    steps.admit(8, len(first), cached=96, pages=pages[:6])
    assert torch.equal(steps.run({8: first[96:]})[8], cold[96:]), "from cached pages"
    steps = Steps(model, library, num_pages=400)
    alone, whole = [], {}
    for row, prompt in enumerate(prompts):
        steps.admit(2 * row, len(prompt))
        alone.append((steps.in_chunks(2 * row, prompt, len(prompt) - 1)[-1], steps.last_logits[0]))
        steps.admit(2 * row + 1, len(prompt))
        whole[2 * row + 1] = prompt
    steps.run({row: prompt[:-1] for row, prompt in whole.items()})
    together = steps.run({row: prompt[-1:] for row, prompt in whole.items()})
    for row, ((one, logits), other) in enumerate(zip(alone, together.values(), strict=True)):
        assert torch.equal(one, other[-1]), f"row {row} in a batch of {len(prompts)}"
        assert torch.equal(logits, steps.last_logits[row]), f"row {row} in a batch of {len(prompts)}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_every_family_gives_the_same_bits_cold_and_warm_alone_and_in_a_batch_whole_and_in_chunks(
    name: str, dtype: torch.dtype, library: Library, tmp_path: Path
) -> None:
    save_tiny(name, tmp_path)
    model = load_directory(tmp_path, dtype, library=library)
    library.set_threads(3)
    _check(model, library, [_ids(150, 199, 0), *(_ids(2 + 3 * seed, 199, seed) for seed in range(1, 12))])
    library.set_threads(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama-tied", "qwen3-biases", "gemma3", "mistral-sliding"])
def test_all_layers_in_one_call_give_the_bits_of_layers_op_by_op(
    name: str, dtype: torch.dtype, library: Library, tmp_path: Path
) -> None:
    save_tiny(name, tmp_path)
    model = load_directory(tmp_path, dtype, library=library)
    ids = _ids(100, 199, 0)
    logits = []
    for is_whole in (True, False):
        model.ops = KernelOps(library, is_whole=is_whole)
        steps = Steps(model, library)
        steps.admit(0, len(ids))
        logits.append(steps.in_chunks(0, ids, 33))
        assert (model.whole is not None and model.whole[1] is not None) == is_whole
    assert torch.equal(*logits)


@pytest.mark.parametrize("keeps_blocks", [True, False], ids=["the file's blocks", "bfloat16"])
def test_the_real_model_gives_the_same_bits_on_real_text(
    library: Library, embedded_path: Path, keeps_blocks: bool
) -> None:
    model = load_embedded(embedded_path, torch.bfloat16, library=library, keeps_blocks=keeps_blocks)
    ids = _text_ids()
    library.set_threads(2)
    _check(model, library, [ids[:150], *(ids[7 * row : 7 * row + 3 + row % 4] for row in range(31))])
    library.set_threads(1)


def _text_ids() -> list[int]:
    """Ids of running text, letter by letter: the embedded model's vocabulary has the printable bytes from 17 on."""
    text = (Path(__file__).parent.parent.parent / "ARCHITECTURE.md").read_text()
    return [17 + ord(letter) - 33 for letter in text if 33 <= ord(letter) < 127]
