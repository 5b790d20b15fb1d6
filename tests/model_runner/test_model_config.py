from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from model_runner.model_config import ARCHITECTURES, parse_model_config, read_model_config
from model_runner.rope_config import Llama3Scaling

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
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"hidden_act": "gelu"}, "gelu"),
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


@pytest.mark.parametrize(
    ("architecture", "change", "windows"),
    [
        ("LlamaForCausalLM", {"sliding_window": 8}, (None, None, None)),
        ("MistralForCausalLM", {}, (4096, 4096, 4096)),
        ("MistralForCausalLM", {"sliding_window": None}, (None, None, None)),
        ("Qwen2ForCausalLM", {"sliding_window": 8}, (None, None, None)),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 1}, (None, 4096, 4096)),
        ("Gemma3ForCausalLM", {"sliding_window": 8, "sliding_window_pattern": 2}, (8, None, 8)),
        ("Gemma3ForCausalLM", {"layer_types": ["full_attention", *2 * ["sliding_attention"]]}, (None, 4096, 4096)),
    ],
)
def test_layers_have_the_window_that_their_family_gives_them(
    architecture: str, change: dict[str, object], windows: tuple[int | None, ...]
) -> None:
    raw = LLAMA | {"architectures": [architecture], "num_hidden_layers": 3, "num_key_value_heads": 4}
    assert parse_model_config(raw | change).windows == windows


def test_layer_types_that_do_not_fit_the_layers_are_refused() -> None:
    raw = LLAMA | {"architectures": ["Gemma3ForCausalLM"]}
    for kinds in (["full_attention"], ["full_attention", "chunked_attention"]):
        with pytest.raises(ValueError, match="layer_types must name 2 times"):
            parse_model_config(raw | {"layer_types": kinds})


def test_a_local_rotary_embedding_with_scaling_is_refused() -> None:
    rope = {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}
    with pytest.raises(ValueError, match="linear is not supported in layers with a sliding window"):
        parse_model_config(LLAMA | {"architectures": ["Gemma3ForCausalLM"], "rope_parameters": rope})


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_file_that_is_no_configuration_is_refused_by_path(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_model_config(path)


def test_reading_configurations_loads_no_torch() -> None:
    code = "import sys, model_runner.model_config, model_runner.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
