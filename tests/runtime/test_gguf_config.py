from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from model_runner.model_config import parse_model_config
from runtime.errors import BadModel
from runtime.gguf_config import config_from_gguf
from runtime.gguf_header import read_header

from .gguf_files import byte_level_tokenizer, write_gguf


def config_of(path: Path) -> dict[str, Any]:
    return config_from_gguf(read_header(path), path)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [("llama", "LlamaForCausalLM"), ("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")],
)
def test_the_configuration_has_the_sizes_of_the_header(tmp_path: Path, architecture: str, name: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", architecture=architecture, fields={"attention.key_length": 16})
    config = AutoConfig.for_model(**config_of(path))
    assert config.architectures == [name]
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (32, 64, 2)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 16)
    assert (config.vocab_size, config.max_position_embeddings, config.rms_norm_eps) == (300, 128, 1e-5)
    assert config.rope_parameters["rope_theta"] == 10000.0
    assert config.tie_word_embeddings


def test_what_a_header_leaves_out_has_its_usual_value(tmp_path: Path) -> None:
    config = config_of(write_gguf(tmp_path / "m.gguf", fields={"attention.head_count_kv": None}))
    assert config["head_dim"] == 8
    assert config["num_key_value_heads"] == 4
    assert config["rope_scaling"] is None


def test_gemma_3_has_the_constants_that_its_files_leave_out(tmp_path: Path) -> None:
    fields = {"attention.sliding_window": 16, "attention.key_length": 10, "rope.freq_base": 5e5, "block_count": 8}
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    config = config_of(write_gguf(tmp_path / "m.gguf", architecture="gemma3", fields=fields | scaling))
    theirs = AutoConfig.for_model(**config)
    assert theirs.architectures == ["Gemma3ForCausalLM"]
    assert theirs.layer_types == [*5 * ["sliding_attention"], "full_attention", *2 * ["sliding_attention"]]
    assert (theirs.sliding_window, theirs.query_pre_attn_scalar, theirs.tie_word_embeddings) == (16, 10, True)
    assert theirs.rope_parameters["sliding_attention"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert theirs.rope_parameters["full_attention"] == {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}
    assert parse_model_config(config).windows == (16, 16, 16, 16, 16, None, 16, 16)


def test_what_a_gemma_3_file_says_is_taken_before_the_constants(tmp_path: Path) -> None:
    fields = {"attention.sliding_window": 16, "attention.sliding_window_pattern": [True, False]}
    capped = {"rope.freq_base_swa": 500.0, "final_logit_softcapping": 30.0}
    config = config_of(write_gguf(tmp_path / "m.gguf", architecture="gemma3", fields=fields | capped))
    parsed = parse_model_config(config)
    assert (parsed.windows, parsed.local_rope_theta, parsed.final_softcap) == ((16, None), 500.0, 30.0)


def test_the_largest_gemma_3_scales_its_queries_by_the_width_of_the_model(tmp_path: Path) -> None:
    fields = {"attention.sliding_window": 16, "attention.key_length": 10, "block_count": 62}
    assert (
        config_of(write_gguf(tmp_path / "m.gguf", architecture="gemma3", fields=fields))["query_pre_attn_scalar"] == 8
    )


def test_an_output_matrix_of_its_own_unties_the_embeddings(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors={"output.weight": np.zeros((300, 32), np.float32)})
    assert not config_of(path)["tie_word_embeddings"]


def test_every_token_that_ends_an_answer_is_listed(tmp_path: Path) -> None:
    one = write_gguf(tmp_path / "a.gguf", tokenizer=byte_level_tokenizer(eos_token_id=7, eot_token_id=7))
    two = write_gguf(tmp_path / "b.gguf", tokenizer=byte_level_tokenizer(eos_token_id=7, eot_token_id=9))
    assert config_of(one)["eos_token_id"] == 7
    assert config_of(two)["eos_token_id"] == [7, 9]


def test_llama_3_rope_scaling_is_found_again_from_its_factors(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    original = AutoConfig.for_model("llama", head_dim=64, rope_parameters={"rope_theta": 500000.0, **scaling})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](original, torch.device("cpu"))
    plain = 500000.0 ** -(torch.arange(0, 64, 2) / 64)
    path = write_gguf(
        tmp_path / "m.gguf",
        fields={"rope.freq_base": 500000.0},
        tensors={"rope_freqs.weight": (plain / scaled).float().numpy()},
    )
    assert config_of(path)["rope_scaling"] == scaling


def test_factors_that_are_not_llama_3_s_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors={"rope_freqs.weight": np.arange(1, 5, dtype=np.float32)})
    with pytest.raises(BadModel, match="not Llama 3's"):
        config_of(path)


def test_linear_and_yarn_scaling_are_taken_over_and_others_refused(tmp_path: Path) -> None:
    fields = {"rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
    betas = {"rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0}
    yarn = write_gguf(tmp_path / "a.gguf", fields={"rope.scaling.type": "yarn", **fields, **betas})
    assert config_of(yarn)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    }
    linear = write_gguf(tmp_path / "c.gguf", fields={"rope.scaling.type": "linear", "rope.scaling.factor": 8.0})
    assert config_of(linear)["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    own = {"rope.scaling.type": "yarn", "rope.scaling.attn_factor": 1.2}
    with pytest.raises(BadModel, match="an attention factor of its own"):
        config_of(write_gguf(tmp_path / "d.gguf", fields=fields | own))
    other = write_gguf(tmp_path / "b.gguf", fields={"rope.scaling.type": "longrope", **fields})
    with pytest.raises(BadModel, match="longrope"):
        config_of(other)


@pytest.mark.parametrize(
    ("architecture", "fields", "why"),
    [
        ("gptneox", {}, "'gptneox'; axil knows llama, qwen2, qwen3, gemma3"),
        ("llama", {"expert_count": 8}, "mixture of experts"),
        ("llama", {"block_count": None}, r"lacks the number llama\.block_count"),
    ],
)
def test_what_axil_does_not_know_is_refused(
    tmp_path: Path, architecture: str, fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(BadModel, match=why):
        config_of(write_gguf(tmp_path / "m.gguf", architecture=architecture, fields=fields))
