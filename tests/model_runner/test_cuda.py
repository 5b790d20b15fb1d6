"""The runner as it is loaded for CUDA; nothing here runs without a device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flashinfer
import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from model_runner.batch import build_batch
from model_runner.config import RunnerConfig, RunnerLaunch
from model_runner.load import load
from model_runner.rows import RowTable
from model_runner.runner import Runner
from wire.messages.encoding import bytes_to_ids, ids_to_bytes
from wire.messages.to_runner import Admission, Chunk, StepPlan
from wire.sampling import SamplingParams

from .conftest import save_wide
from .devices import NEEDS_CUDA

pytestmark = NEEDS_CUDA

PROMPTS = [[5, 9, 13], [7] * 15, [1, 2, 3, 4] * 4, [11] * 17, [8, 6] * 20]
GREEDY = SamplingParams(temperature=0.0, seed=0)
DRAWN = SamplingParams(temperature=0.9, top_p=0.8, top_k=40, seed=5)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide")
    save_wide(path)
    return path


def _launch(directory: Path, config: RunnerConfig) -> RunnerLaunch:
    return RunnerLaunch(
        run_dir="",
        weights=str(directory),
        model_config=str(directory / "config.json"),
        tokenizer=str(directory / "tokenizer.json"),
        config=config,
    )


def _generate(
    directory: Path, params: SamplingParams, *, is_ahead: bool, num_tokens: int = 12, **flags: object
) -> list[list[int]]:
    """What all prompts together give; `is_ahead` launches each step before the tokens of the one before are taken."""
    config = RunnerConfig(device="cuda", max_total_tokens=4096, context_length=512, **flags)  # type: ignore[arg-type]
    runner = load(_launch(directory, config), lambda done, total: None).runner
    num_pages = 512 // config.page_tokens
    admissions = tuple(
        Admission(
            row=row,
            request_id=str(row),
            sampling=params,
            num_cached_tokens=0,
            page_ids=ids_to_bytes(range(row * num_pages, (row + 1) * num_pages)),
        )
        for row in range(len(PROMPTS))
    )
    chunks = tuple(
        Chunk(row=row, token_ids=ids_to_bytes(prompt), is_sampled=True) for row, prompt in enumerate(PROMPTS)
    )
    columns: list[Sequence[int]] = []
    running = runner.launch(StepPlan(step=0, admissions=admissions, chunks=chunks))
    for step in range(1, num_tokens):
        if not is_ahead:
            columns.append(bytes_to_ids(running.result().token_ids))
        torch.cuda._sleep(20_000_000)
        following = runner.launch(StepPlan(step=step, decodes=ids_to_bytes(range(len(PROMPTS)))))
        if is_ahead:
            columns.append(bytes_to_ids(running.result().token_ids))
        running = following
    columns.append(bytes_to_ids(running.result().token_ids))
    return [list(row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("sizes", ["none", "8,2"])
def test_steps_launched_ahead_give_the_tokens_of_steps_one_by_one(
    sizes: str, params: SamplingParams, directory: Path
) -> None:
    one, other = (_generate(directory, params, is_ahead=is_ahead, cuda_graph_sizes=sizes) for is_ahead in (False, True))
    assert one == other


def test_the_first_tokens_are_those_of_transformers_on_the_cpu(directory: Path) -> None:
    reference = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    for prompt, output in zip(PROMPTS, _generate(directory, GREEDY, is_ahead=True, num_tokens=2), strict=True):
        logits = reference(torch.tensor([prompt])).logits[0, -1]
        assert logits.max() - logits[output[0]] < 0.05 * logits.std()


@pytest.mark.parametrize("page_tokens", [1, 16])
def test_recorded_steps_give_the_tokens_of_the_steps_themselves(page_tokens: int, directory: Path) -> None:
    # Sums are split otherwise in them: in bfloat16 the two likeliest tokens may then change places.
    flags: dict[str, object] = {"dtype": "float16", "page_tokens": page_tokens}
    eager, recorded = (
        _generate(directory, GREEDY, is_ahead=True, num_tokens=4, cuda_graph_sizes=sizes, **flags)
        for sizes in ("none", "8")
    )
    assert eager == recorded


def test_the_first_tokens_with_triton_are_those_of_transformers_too(directory: Path) -> None:
    reference = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    outputs = _generate(directory, GREEDY, is_ahead=True, num_tokens=2, attention="triton")
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        logits = reference(torch.tensor([prompt])).logits[0, -1]
        assert logits.max() - logits[output[0]] < 0.05 * logits.std()


def test_recorded_steps_of_triton_give_the_tokens_of_the_steps_themselves(directory: Path) -> None:
    flags: dict[str, object] = {"dtype": "float32", "attention": "triton"}
    eager, recorded = (
        _generate(directory, GREEDY, is_ahead=True, num_tokens=4, cuda_graph_sizes=sizes, **flags)
        for sizes in ("none", "8")
    )
    assert eager == recorded


def test_in_deterministic_mode_a_prompt_gives_the_same_bits_in_one_piece_in_chunks_and_in_company(
    directory: Path,
) -> None:
    config = RunnerConfig(device="cuda", max_total_tokens=4096, context_length=512, deterministic=True)
    runner = load(_launch(directory, config), lambda done, total: None).runner
    prompt = [(7 * i) % 199 for i in range(300)]
    whole = _hidden(runner, [(0, 300)], prompt)
    for cuts in ([(0, 160), (160, 300)], [(0, 299), (299, 300)], [(start, start + 20) for start in range(0, 300, 20)]):
        assert torch.equal(_hidden(runner, cuts, prompt), whole)


def _hidden(runner: Runner[Any], chunks: Sequence[tuple[int, int]], prompt: Sequence[int]) -> Tensor:
    """Hidden states of a prompt computed in chunks, each beside two other prompts."""
    pieces = []
    for start, end in chunks:
        table = RowTable(num_pages=200, page_tokens=16)
        for row, length in enumerate((start, 0, 0)):
            pages = ids_to_bytes(range(40 * row, 40 * row + 20))
            table.admit(Admission(row=row, request_id="", sampling=GREEDY, num_cached_tokens=length, page_ids=pages))
        own = Chunk(row=0, token_ids=ids_to_bytes(prompt[start:end]), is_sampled=True)
        others = [Chunk(row=row, token_ids=ids_to_bytes(prompt[: 7 * row]), is_sampled=True) for row in (1, 2)]
        batch = build_batch(table, StepPlan(step=0, chunks=(own, *others)), vocabulary=199)
        pieces.append(runner.forward(batch)[: end - start].clone())
    return torch.cat(pieces)


def test_kernels_that_were_built_elsewhere_are_those_of_their_manifest() -> None:
    folder = Path(flashinfer.jit.env.FLASHINFER_AOT_DIR)
    if not (folder / "manifest.json").exists():
        pytest.skip("FlashInfer compiles its kernels here")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["flashinfer"] == flashinfer.__version__
    for one in manifest["modules"]:
        data = (folder / one["name"] / f"{one['name']}.so").read_bytes()
        assert hashlib.sha256(data).hexdigest() == one["sha256"], one["name"]
