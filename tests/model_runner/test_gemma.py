"""Gemma-3-270m against transformers, from one GGUF file: weights, tokens and text."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer, Gemma3ForCausalLM

from model_runner.model_config import read_model_config
from model_runner.models.decoder import Decoder
from model_runner.models.registry import make_model
from model_runner.weights import load_weights
from runtime.model_files import ModelFiles, resolve_model

from .bed import TOLERANCE, Bed, assert_same, greedy
from .gemma_files import join_gemma

TEXTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "   two  spaces,\t\ttabs\n\n\nand newlines  \n",
    "Grüße, naïve café, Ελληνικά, русский, 日本語のテキスト, 한국어, العربية, עברית, हिन्दी",
    "🙂 👩‍👩‍👧‍👦 🇩🇪 \x00\x01\x7f \u200b e\u0301",
    "<b>bold</b> <table> <start_of_turn>user\nHi<end_of_turn>\n",
    "3.14159, 1,000,000 or -42; x1y22z333",
    "a" * 100 + " " * 31 + "b" + "\n" * 31,
]
LONG_TEXT = "".join(f"{i}. The tree of page {i * i} has {i % 7} leaves.\n" for i in range(60))


@dataclass(frozen=True)
class Gemma:
    """The file, what it says of itself, our model and transformers' with the same weights."""

    files: ModelFiles
    model: Decoder
    reference: Gemma3ForCausalLM
    tokenizer: Tokenizer


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Gemma:
    directory = tmp_path_factory.mktemp("gemma")
    path = join_gemma(directory / "gemma-3-270m.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory))
        files = resolve_model(str(path))
    model = make_model(read_model_config(files.model_config), torch.float32)
    load_weights(model, path, lambda done, total: None)
    with torch.device("meta"):
        reference = Gemma3ForCausalLM(AutoConfig.from_pretrained(files.tokenizer_dir))
    weights = {name: value - 1 if name.endswith("norm.weight") else value for name, value in model.parameters()}
    reference.load_state_dict(weights, strict=False, assign=True)
    reference.tie_weights()
    reference.model.rotary_emb = type(reference.model.rotary_emb)(reference.config)
    reference.model.embed_tokens.embed_scale = torch.tensor(reference.config.hidden_size**0.5)
    return Gemma(files, model, reference.eval(), Tokenizer.from_file(str(files.tokenizer_dir / "tokenizer.json")))


def test_the_file_raises_no_warning(gemma: Gemma) -> None:
    assert gemma.files.warnings == ()


def test_greedy_tokens_equal_those_of_transformers(gemma: Gemma) -> None:
    prompts = [gemma.tokenizer.encode(text).ids for text in TEXTS]
    outputs = Bed(gemma.model).generate([greedy(prompt) for prompt in prompts], 12)
    for prompt, output in zip(prompts, outputs, strict=True):
        with torch.inference_mode():
            logits = gemma.reference(torch.tensor([prompt + output.token_ids[:-1]]), logits_to_keep=12).logits[0]
        assert logits.argmax(-1).tolist() == output.token_ids
    assert "France" in gemma.tokenizer.decode(outputs[0].token_ids)


def test_a_prompt_longer_than_the_window_gives_what_transformers_gives_whole_and_in_chunks(gemma: Gemma) -> None:
    prompt = gemma.tokenizer.encode(LONG_TEXT).ids
    assert len(prompt) > 1.5 * gemma.reference.config.sliding_window
    bed = Bed(gemma.model)
    (whole,) = bed.generate([greedy(prompt)], 8)
    with torch.inference_mode():
        logits = gemma.reference(torch.tensor([prompt + whole.token_ids[:-1]]), logits_to_keep=8).logits[0]
    expected = logits.log_softmax(-1).max(-1)
    assert whole.token_ids == expected.indices.tolist()
    assert (torch.tensor(whole.logprobs) - expected.values).abs().max() <= 10 * TOLERANCE
    assert_same(bed.generate([greedy(prompt)], 8, chunk_tokens=200)[0], whole)


def test_text_becomes_the_ids_that_transformers_makes_of_it_and_comes_back(gemma: Gemma) -> None:
    path = gemma.files.weights
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in (*TEXTS, LONG_TEXT, "", " ", "▁", "<bos>a<eos>", "<unused5> b"):
        ids = gemma.tokenizer.encode(text).ids
        assert ids == theirs(text).input_ids, text
        assert gemma.tokenizer.decode(ids[1:], skip_special_tokens=False) == text.replace("▁", " ")


def test_the_longest_run_of_spaces_is_taken_first_as_sentencepiece_does(gemma: Gemma) -> None:
    assert [len(token) for token in gemma.tokenizer.encode(" " * 70).tokens[1:]] == [31, 31, 8]
