"""A model of a family that axil has no code for, served whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import Olmo2Config

from tests.e2e.server import Server
from tests.model_runner.foreign import SIZES, save_foreign

pytestmark = pytest.mark.e2e

PROMPT = list(range(40, 140, 2))
NUM_TOKENS = 12


def _save_tokenizer(directory: Path) -> None:
    """One token for each byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))


def test_an_unknown_family_is_served_in_transformers_code_with_its_tokens(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    directory = tmp_path / "olmo"
    reference = save_foreign(Olmo2Config(**SIZES | {"vocab_size": 256}), directory)
    _save_tokenizer(directory)
    server = start(str(directory), "--dtype", "float32", "--max-total-tokens", "2000").wait_ready()
    assert "class=Olmo2ForCausalLM" in server.log
    expected = reference.generate(
        torch.tensor([PROMPT]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, len(PROMPT) :].tolist()
    sampling = {"temperature": 0, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    request = {"input_ids": PROMPT, "sampling_params": sampling}
    for num_cached_tokens in (0, len(PROMPT) - 1):
        answer = server.post("/generate", request).json
        assert answer["output_ids"] == expected
        assert answer["meta_info"]["cached_tokens"] == num_cached_tokens
