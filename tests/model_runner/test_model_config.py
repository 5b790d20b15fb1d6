from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from model_runner.model_config import ARCHITECTURES, Llama3Scaling, parse_model_config, read_model_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}


def test_what_a_configuration_leaves_out_has_the_defaults_of_transformers() -> None:
    config = parse_model_config(LLAMA)
    assert (config.num_kv_heads, config.head_dim, config.norm_eps, config.rope_theta) == (4, 16, 1e-6, 10_000.0)
    assert not config.is_embedding_tied
    assert config.rope_scaling is None


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **SCALING}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **SCALING}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **SCALING}},
    ],
)
def test_old_and_new_spellings_of_rope_mean_the_same(rope: dict[str, object]) -> None:
    config = parse_model_config(LLAMA | rope)
    assert config.rope_theta == 5e5
    assert config.rope_scaling == Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_tokens=128
    )


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="GemmaForCausalLM") as caught:
        parse_model_config(LLAMA | {"architectures": ["GemmaForCausalLM"]})
    assert all(name in str(caught.value) for name in ARCHITECTURES)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parse_model_config(LLAMA | change)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_file_that_is_no_configuration_is_refused_by_path(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_model_config(path)


def test_reading_configurations_loads_no_torch() -> None:
    code = "import sys, model_runner.model_config, model_runner.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
