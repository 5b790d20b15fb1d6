from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BloomConfig,
    DiffLlamaConfig,
    DogeConfig,
    Gemma3Config,
    Gemma4TextConfig,
    GptOssConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    T5Config,
)

from model_runner.attention.torch_backend import TorchAttention
from model_runner.transformers_impl.build import build_model
from model_runner.transformers_impl.source import read_source
from model_runner.transformers_impl.verification import reference_logits, verify
from wire.messages.encoding import unpack_logprobs
from wire.sampling import SamplingParams

from .bed import TOLERANCE, Bed, assert_same, greedy
from .conftest import load_directory, save_tiny
from .foreign import FAMILIES, SIZES, VOCABULARY, save_foreign

LONG = torch.randint(3, VOCABULARY, (300,), generator=torch.Generator().manual_seed(3)).tolist()
PROMPTS = (LONG[:14], LONG[20:51], LONG[70:73])
NUM_TOKENS = 10
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 128,
}


@dataclass
class Pair:
    """The same weights in transformers alone, and on our attention."""

    reference: PreTrainedModel
    bed: Bed


def _bed(directory: Path) -> Bed:
    model, spec = build_model(read_source(directory / "config.json"), directory, torch.float32, page_tokens=16)
    return Bed(model, spec=spec)


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp(request.param)
    reference = save_foreign(FAMILIES[request.param], directory)
    yield Pair(reference, _bed(directory))


def test_greedy_tokens_of_a_mixed_batch_equal_those_of_transformers(pair: Pair) -> None:
    outputs = pair.bed.generate([greedy(prompt) for prompt in PROMPTS], NUM_TOKENS, chunk_tokens=9)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        expected = pair.reference.generate(
            torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert output.token_ids == expected[0, len(prompt) :].tolist()


def test_logprobs_in_chunks_from_cached_pages_and_of_the_prompt_equal_those_of_transformers(pair: Pair) -> None:
    params = SamplingParams(temperature=0.0, num_top_logprobs=0, seed=0, prompt_logprobs_from=200)
    (output,) = pair.bed.generate([greedy(LONG, params=params)], 6, chunk_tokens=70)
    with torch.inference_mode():
        logits = pair.reference(torch.tensor([LONG + output.token_ids])).logits[0, :-1].float()
    logprobs = logits.log_softmax(-1)
    best = logprobs[len(LONG) - 1 :].max(-1)
    assert output.token_ids == best.indices.tolist()
    assert (torch.tensor(output.logprobs) - best.values).abs().max() <= TOLERANCE
    given = torch.tensor([unpack_logprobs(entry)[0] for entry in output.prompt_logprobs])
    expected = logprobs[199 : len(LONG) - 1].gather(1, torch.tensor(LONG[200:])[:, None])[:, 0]
    assert (given - expected).abs().max() <= TOLERANCE
    (warm,) = pair.bed.generate([greedy(LONG, pages=output.pages[:17], num_cached_tokens=270)], 6)
    assert_same(warm, output)


@pytest.mark.parametrize("name", ["llama-yarn-rope", "qwen2-sliding", "gemma3-linear-rope"])
def test_a_family_of_ours_gives_the_same_in_either_code(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path)
    (own,), (theirs,) = (
        bed.generate([greedy(LONG)], 8, chunk_tokens=70) for bed in (Bed(load_directory(tmp_path)), _bed(tmp_path))
    )
    assert_same(own, theirs)


REFUSED_CONFIGS: dict[str, tuple[PreTrainedConfig, str]] = {
    "biased scores": (BloomConfig(), "attention interface"),
    "convolution": (Lfm2Config(**SIZES, layer_types=["conv", "full_attention", "conv"]), "layers of conv"),
    "chunks": (Llama4TextConfig(**SIZES, layer_types=["chunked_attention"] * 3), "chunked_attention"),
    "encoder and decoder": (T5Config(), "no decoder of text"),
    "images": (Gemma3Config(), "more than text"),
    "dynamic rope": (
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}),
        "rope_type dynamic",
    ),
    "no head for text": (
        LlamaConfig(**SIZES, architectures=["LlamaForSequenceClassification"]),
        "LlamaForSequenceClassification does not generate text",
    ),
    "quantised": (LlamaConfig(**SIZES, quantization_config={"quant_method": "fp8"}), "quantization_config"),
}
REFUSED_LAYERS: dict[str, tuple[PreTrainedConfig, str]] = {
    "sinks": (GptOssConfig(**SIZES, head_dim=8, num_local_experts=4), "attention sinks"),
    "not causal": (BertConfig(**SIZES), "not causal"),
    "two shapes of heads": (
        Gemma4TextConfig(
            **SIZES,
            head_dim=8,
            global_head_dim=16,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=VOCABULARY,
            num_kv_shared_layers=0,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        ),
        "differ in",
    ),
    "two attentions in a layer": (DiffLlamaConfig(**SIZES), "6 times"),
    "masks of its own": (DogeConfig(**SIZES), "attention and its mask"),
}


@pytest.mark.parametrize("name", REFUSED_CONFIGS)
def test_what_a_configuration_shows_is_refused_before_weights_are_read(name: str, tmp_path: Path) -> None:
    config, words = REFUSED_CONFIGS[name]
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=words):
        read_source(tmp_path / "config.json")


@pytest.mark.parametrize("name", REFUSED_LAYERS)
def test_what_our_attention_does_not_do_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    config, words = REFUSED_LAYERS[name]
    save_foreign(config, tmp_path)
    with pytest.raises(ValueError, match=words):
        _bed(tmp_path)


def test_a_name_from_before_transformers_had_the_code_is_taken(tmp_path: Path) -> None:
    LlamaConfig(**SIZES, architectures=["ExaoneForCausalLM"]).save_pretrained(tmp_path)
    assert read_source(tmp_path / "config.json").name == "LlamaForCausalLM"


def test_code_beside_the_weights_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("raise SystemExit('was run')")
    config = {"model_type": "unheard_of", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="can't read"):
        read_source(tmp_path / "config.json")


@pytest.mark.parametrize("change", ["missing", "unexpected", "of another shape"])
def test_tensors_that_do_not_fit_the_model_are_named(change: str, tmp_path: Path) -> None:
    save_foreign(FAMILIES["phi3"], tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    if change == "missing":
        del tensors[name]
    elif change == "unexpected":
        name = "model.layers.1.mlp.side_proj.weight"
        tensors[name] = torch.zeros(3)
    else:
        tensors[name] = tensors[name][:, :8].clone()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        _bed(tmp_path)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    save_foreign(FAMILIES["phi3"], tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=f"safetensors in {tmp_path}"):
        _bed(tmp_path)


def test_the_context_ends_where_longrope_would_turn_tokens_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_foreign(Phi3Config(**SIZES, rope_parameters=LONGROPE, original_max_position_embeddings=128), tmp_path)
    with caplog.at_level(logging.WARNING, "model_runner"):
        assert read_source(tmp_path / "config.json").context_tokens == 128
    assert "context shortened to 128 tokens" in caplog.text


def test_a_model_that_computes_something_else_on_our_attention_does_not_start(tmp_path: Path) -> None:
    save_foreign(FAMILIES["olmo2"], tmp_path)
    source = read_source(tmp_path / "config.json")
    causal = save_foreign(FAMILIES["olmo2"], tmp_path)
    model, spec = build_model(source, tmp_path, torch.float32, page_tokens=16)
    expected_TV = reference_logits(causal)
    verify(model, TorchAttention(spec), expected_TV, torch.float32)
    with pytest.raises(ValueError, match="not those that transformers computes"):
        verify(model, TorchAttention(replace(spec, scale=1.1 * spec.scale)), expected_TV, torch.float32)


@pytest.mark.parametrize("name", ["gemma2", "mixtral"])
def test_bfloat16_starts_and_keeps_its_type_in_the_pool(name: str, tmp_path: Path) -> None:
    save_foreign(FAMILIES[name], tmp_path)
    model, spec = build_model(read_source(tmp_path / "config.json"), tmp_path, torch.bfloat16, page_tokens=16)
    assert spec.dtype == torch.bfloat16
    (output,) = Bed(model, spec=spec).generate([greedy(PROMPTS[0])], 3)
    assert len(output.token_ids) == 3
