from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model_runner.models.decoder import Decoder, num_parameters

from .bed import TOLERANCE, Bed, assert_same, greedy
from .conftest import TINY_CONFIGS, load_directory, save_tiny

NUM_TOKENS = 24
PROMPT = [7, 3, 150, 42, 42, 9, 198, 1, 77, 12, 5, 64, 101, 33]


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_greedy_tokens_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = save_tiny(name, tmp_path)
    bed = Bed(load_directory(tmp_path))
    (output,) = bed.generate([greedy(PROMPT)], NUM_TOKENS)
    expected = reference.generate(
        torch.tensor([PROMPT]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert output.token_ids == expected[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("has_kernels", [False, True])
@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_logprobs_equal_those_of_transformers(
    name: str, has_kernels: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    library = request.getfixturevalue("library") if has_kernels else None
    reference = save_tiny(name, tmp_path)
    prompt = torch.randint(0, 199, (600,), generator=torch.Generator().manual_seed(3)).tolist()
    bed = Bed(load_directory(tmp_path, library=library), library=library)
    (output,) = bed.generate([greedy(prompt)], 8, chunk_tokens=150)
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + output.token_ids])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).max(-1)
    assert output.token_ids == expected.indices.tolist()
    assert (torch.tensor(output.logprobs) - expected.values).abs().max() <= TOLERANCE


def test_a_prompt_longer_than_the_window_gives_the_same_in_chunks_from_cached_pages_and_in_one_piece(
    tmp_path: Path,
) -> None:
    save_tiny("gemma3", tmp_path)
    bed = Bed(load_directory(tmp_path), num_pages=512, page_tokens=4)
    prompt = torch.randint(0, 199, (300,), generator=torch.Generator().manual_seed(4)).tolist()
    (whole,) = bed.generate([greedy(prompt)], 16)
    for chunk_tokens in (1, 7, 13, 64):
        assert_same(bed.generate([greedy(prompt)], 16, chunk_tokens=chunk_tokens)[0], whole)
    (warm,) = bed.generate([greedy(prompt, pages=whole.pages[:70], num_cached_tokens=280)], 16)
    assert_same(warm, whole)


def test_a_sharded_checkpoint_gives_the_same_tokens_as_one_file(tmp_path: Path) -> None:
    save_tiny("qwen2", tmp_path / "one")
    save_tiny("qwen2", tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    outputs = [Bed(load_directory(tmp_path / kind)).generate([greedy(PROMPT)], 8) for kind in ("one", "shards")]
    assert outputs[0][0].token_ids == outputs[1][0].token_ids


@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_the_parameter_count_foretells_the_memory_of_the_matrices(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path)
    model: Decoder = load_directory(tmp_path)
    assert num_parameters(model.config) == sum(x.numel() for _, x in model.parameters() if x.dim() == 2)
