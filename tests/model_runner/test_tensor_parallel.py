from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from model_runner.config import RunnerConfig
from model_runner.device import resolve_device
from model_runner.errors import StartError
from model_runner.kernels.library import Library
from model_runner.kernels.linear import Format, LinearKernels, PackedWeight
from model_runner.kernels.ops import KernelOps
from model_runner.linears import KernelLinears
from model_runner.model_config import parse_model_config, read_model_config
from model_runner.models.registry import make_model, shape_of
from model_runner.ranks import Alone
from model_runner.share import Share, possible_ranks
from model_runner.weights import load_weights, stored_types

from .bed import TOLERANCE, Bed, greedy
from .conftest import EMBEDDED_CONFIG, SIZES, TINY_CONFIGS, load_directory, load_embedded, save_tiny

ROOT = Path(__file__).parents[2]
PROMPTS = [[7, 3, 150, 42, 42, 9, 198, 1, 77, 12, 5, 64, 101, 33], [5], [99, 100, 101, 0]]
NUM_TOKENS = 12
ONE_KV_HEAD = "one-kv-head"
MODELS = [*TINY_CONFIGS, ONE_KV_HEAD]


def _start(job: Path, num_ranks: int) -> list[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.model_runner.rank_worker", str(job)]
    return [
        subprocess.Popen(
            [*command, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(num_ranks)
    ]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random models of every family, and one whose kv head every rank has to hold."""
    root = tmp_path_factory.mktemp("models")
    for name in TINY_CONFIGS:
        save_tiny(name, root / name)
    torch.manual_seed(0)
    one = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES | {"num_key_value_heads": 1}))
    one.save_pretrained(root / ONE_KV_HEAD)
    return root


@pytest.fixture(scope="module")
def two_ranks(directory: Path) -> dict[str, Any]:
    """What two ranks gave, by model, code and chunk."""
    job = directory / "job.json"
    models = [str(directory / name) for name in MODELS]
    job.write_text(json.dumps({"num_ranks": 2, "models": models, "prompts": PROMPTS, "num_tokens": NUM_TOKENS}))
    for rank in _start(job, 2):
        _, errors = rank.communicate(timeout=280)
        assert rank.returncode == 0, errors
    outputs: dict[str, Any] = json.loads(job.with_suffix(".out").read_text())
    return outputs


@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_give_the_tokens_of_one(
    name: str, directory: Path, two_ranks: dict[str, Any], library: Library
) -> None:
    prompts = [greedy(prompt) for prompt in PROMPTS]
    for code, kernels in (("torch", None), ("kernels", library)):
        alone = Bed(load_directory(directory / name, library=kernels), library=kernels).generate(prompts, NUM_TOKENS)
        for one, (token_ids, logprobs) in zip(alone, two_ranks[f"{name} {code} None"], strict=True):
            assert token_ids == one.token_ids
            assert max(abs(a - b) for a, b in zip(logprobs, one.logprobs, strict=True)) <= TOLERANCE


def test_logits_come_together_on_the_first_rank_only(directory: Path, two_ranks: dict[str, Any]) -> None:
    first, second = (json.loads((directory / f"job.joined{rank}").read_text()) for rank in range(2))
    assert first == 2 * [[1, 1, 1, 2, 2]]
    assert second == 2 * [[0, 0, 0, 0, 0]]


@pytest.mark.parametrize("name", MODELS)
def test_in_the_kernels_a_prompt_in_chunks_gives_the_bits_of_one_in_one_piece_on_two_ranks_too(
    name: str, two_ranks: dict[str, Any]
) -> None:
    assert two_ranks[f"{name} kernels None"] == two_ranks[f"{name} kernels 5"]


def test_when_a_rank_is_killed_the_other_one_does_not_wait_for_it(directory: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    forever = {"num_ranks": 2, "models": [str(directory / "llama")], "prompts": PROMPTS, "num_tokens": 1000}
    job.write_text(json.dumps(forever))
    first, second = _start(job, 2)
    try:
        assert second.stdout is not None
        assert second.stdout.readline() == "joined\n"
        second.send_signal(signal.SIGKILL)
        _, errors = first.communicate(timeout=120)
        assert first.returncode == 1
        assert "RankLost" in errors
    finally:
        for rank in (first, second):
            rank.kill()
            rank.communicate()


class _Rank(Alone):
    """A rank that is never asked for anything."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank, self.num_ranks = rank, num_ranks


@pytest.mark.parametrize("name", ["llama-biases", ONE_KV_HEAD])
def test_the_ranks_parts_of_a_checkpoint_are_the_checkpoint(name: str, directory: Path) -> None:
    path, num_ranks = directory / name, 2
    config = read_model_config(path / "config.json")
    whole = dict(load_directory(path).parameters())
    covered = {name: torch.zeros(tensor.shape) for name, tensor in whole.items()}
    for rank in range(num_ranks):
        model = make_model(config, torch.float32, ranks=_Rank(rank, num_ranks))
        load_weights(model, path, lambda done, total: None)
        for name, own in model.parameters():
            part = model.share.part(name, tuple(own.shape))
            index = part.rows if part.columns is None else (part.rows, part.columns)
            assert torch.equal(whole[name][index], own), name
            covered[name][index] += 1
    for name, count in covered.items():
        has_one_kv_head = config.num_kv_heads == 1 and ("k_proj" in name or "v_proj" in name)
        is_shared = "norm" in name or has_one_kv_head
        assert (count == (num_ranks if is_shared else 1)).all(), name


def test_a_rank_reads_its_part_of_the_safetensors_only(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from model_runner import safetensors_weights

    num_read = 0
    real = safetensors_weights.safe_open

    class Slice:
        def __init__(self, source: Any) -> None:  # noqa: ANN401 - safetensors' own
            self.source = source

        def get_shape(self) -> list[int]:
            shape: list[int] = self.source.get_shape()
            return shape

        def __getitem__(self, index: Any) -> torch.Tensor:  # noqa: ANN401 - slices
            nonlocal num_read
            piece: torch.Tensor = self.source[index]
            num_read += piece.numel()
            return piece

    class Spy:
        def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
            self.opened = real(*args, **kwargs)

        def __enter__(self) -> Spy:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def keys(self) -> list[str]:
            return list(self.opened.keys())

        def get_slice(self, name: str) -> Slice:
            return Slice(self.opened.get_slice(name))

    monkeypatch.setattr(safetensors_weights, "safe_open", Spy)
    path = directory / "llama"
    model = make_model(read_model_config(path / "config.json"), torch.float32, ranks=_Rank(1, 2))
    load_weights(model, path, lambda done, total: None)
    assert num_read == sum(own.numel() for _, own in model.parameters())


def test_a_gguf_file_is_cut_as_its_dequantised_tensors_are(embedded_path: Path) -> None:
    config = parse_model_config(EMBEDDED_CONFIG)
    whole = dict(load_embedded(embedded_path, torch.float32).parameters())
    model = make_model(config, torch.float32, ranks=_Rank(1, 3))
    load_weights(model, embedded_path, lambda done, total: None)
    for name, own in model.parameters():
        part = model.share.part(name, tuple(own.shape))
        assert torch.equal(whole[name][part.rows if part.columns is None else (part.rows, part.columns)], own), name


def test_what_a_model_can_not_be_divided_by_is_named_with_numbers_that_do() -> None:
    config = parse_model_config(EMBEDDED_CONFIG)
    assert possible_ranks(config) == [1, 3]
    with pytest.raises(StartError, match=r"--tensor-parallel 2 does not divide the model's 9 query heads; .* 1 or 3"):
        Share(whole=config, num_ranks=2)
    wide = replace(config, num_heads=12, num_kv_heads=4, intermediate_size=1536)
    assert possible_ranks(wide) == [1, 2, 4, 12]
    with pytest.raises(StartError, match="does not divide the model's 4 kv heads"):
        Share(whole=wide, num_ranks=6)


def test_query_heads_lie_where_their_kv_head_is() -> None:
    config = replace(parse_model_config(EMBEDDED_CONFIG), num_heads=12, num_kv_heads=4)
    for num_ranks in possible_ranks(config):
        for rank in range(num_ranks):
            share = Share(whole=config, rank=rank, num_ranks=num_ranks)
            wanted = {head // 3 for head in share.heads}
            assert wanted == set(share.kv_heads)


def test_more_ranks_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(StartError, match=r"--tensor-parallel 4 needs 4 CUDA devices and torch sees 2; .* at most 2"):
        resolve_device("cuda", rank=3, num_ranks=4)


def test_no_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="--tensor-parallel must be at least 1, got 0"):
        RunnerConfig(tensor_parallel=0)


def test_blocks_of_a_gguf_file_are_cut_too(embedded_path: Path, library: Library) -> None:
    config = parse_model_config(EMBEDDED_CONFIG)
    stored = stored_types(embedded_path, config, shape_of(config))
    names = ("model.layers.0.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.weight")
    whole = dict(load_embedded(embedded_path, torch.float32).parameters())
    linears = KernelLinears(LinearKernels(library), torch.float32, stored=stored)
    model = make_model(config, torch.float32, KernelOps(library, is_whole=False), linears, _Rank(1, 3))
    load_weights(model, embedded_path, lambda done, total: None)
    layer = model.layers[0]
    for name, linear, num_outputs in zip(names, (layer.down, layer.qkv), (576, 192), strict=True):
        assert isinstance(linear, PackedWeight)
        assert linear.kind.format is Format.INT4
        part = model.share.part(name, (num_outputs, linear.num_columns))
        expected = whole[name][part.rows if part.columns is None else (part.rows, part.columns)]
        assert torch.equal(linear.rows(torch.arange(num_outputs), torch.float32), expected)
