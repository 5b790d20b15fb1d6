"""Turns the metadata of a GGUF file into a `config.json` in the form that transformers writes.

Knows the names of both sides, no weights but the few numbers of `rope_freqs`, and nothing of tokenizers.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

from .errors import BadModel
from .gguf_header import GgufHeader

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
_GEMMA3_THETA, _GEMMA3_LOCAL_THETA, _GEMMA3_PATTERN, _GEMMA3_27B_LAYERS = 1_000_000.0, 10_000.0, 6, 62
_FLOAT32 = 0
_SCALING_FIELDS = {
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def config_from_gguf(header: GgufHeader, path: Path) -> dict[str, Any]:
    """The model's configuration; `path` is read for the factors of Llama 3's rope scaling, and named in errors.

    Raises:
        BadModel: an unknown architecture, mixture of experts or rope scaling, or a missing field.
    """
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise BadModel(f"{path} has the architecture {architecture!r}; axil knows {known}. Choose another model.")

    def get(name: str, default: float | None = None) -> float:
        value = metadata.get(f"{architecture}.{name}", default)
        if not isinstance(value, int | float):
            raise BadModel(f"{path} lacks the number {architecture}.{name}; convert the model to GGUF anew")
        return value

    if get("expert_count", 0):
        raise BadModel(f"{path} is a mixture of experts, which axil does not know yet. Choose a dense model.")
    if metadata.get("split.count", 1) > 1 or "token_embd.weight" not in header.tensors:
        raise BadModel(
            f"{path} is one part of a split model; merge the parts with llama.cpp's llama-gguf-split --merge"
        )
    hidden_size, num_heads = get("embedding_length"), get("attention.head_count")
    theta = float(get("rope.freq_base", _GEMMA3_THETA if architecture == "gemma3" else 10000.0))
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "hidden_size": hidden_size,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": get("attention.head_count_kv", num_heads),
        "head_dim": get("attention.key_length", hidden_size // num_heads),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": float(f"{get('attention.layer_norm_rms_epsilon'):.7g}"),  # the decimal that float32 rounded
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(header, path, architecture, theta),
        "vocab_size": header.tensors["token_embd.weight"].shape[1],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
    }
    for name in ("bos", "pad"):
        config[f"{name}_token_id"] = metadata.get(_token_key(name))
    config["eos_token_id"] = _end_ids(metadata)
    if architecture == "gemma3":
        config |= _gemma3(metadata, config)
    else:
        config["hidden_act"] = "silu"
    return config


def _gemma3(metadata: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """What Gemma 3 says otherwise; GGUF files leave out what llama.cpp has as constants."""
    pattern = metadata.get("gemma3.attention.sliding_window_pattern", _GEMMA3_PATTERN)
    kinds = pattern if isinstance(pattern, list) else [(i + 1) % pattern for i in range(config["num_hidden_layers"])]
    query_scalar = config["head_dim"]
    if config["num_hidden_layers"] == _GEMMA3_27B_LAYERS:
        query_scalar = config["hidden_size"] // config["num_attention_heads"]
    return {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": metadata.get("gemma3.attention.sliding_window"),
        "layer_types": ["sliding_attention" if is_local else "full_attention" for is_local in kinds],
        "rope_local_base_freq": float(metadata.get("gemma3.rope.freq_base_swa", _GEMMA3_LOCAL_THETA)),
        "query_pre_attn_scalar": query_scalar,
        "final_logit_softcapping": metadata.get("gemma3.final_logit_softcapping"),
    }


def _token_key(name: str) -> str:
    return f"tokenizer.ggml.{'padding' if name == 'pad' else name}_token_id"


def _end_ids(metadata: dict[str, Any]) -> int | list[int] | None:
    """The ids that end an answer: end of text, of turn and of message, where the file names them."""
    named = [metadata.get(_token_key(name)) for name in ("eos", "eot", "eom")]
    ids = list(dict.fromkeys(token_id for token_id in named if token_id is not None))
    if len(ids) > 1:
        return ids
    return ids[0] if ids else None


def _rope_scaling(header: GgufHeader, path: Path, architecture: str, theta: float) -> dict[str, Any] | None:
    if "rope_freqs.weight" in header.tensors:
        return _llama3_scaling(header, path, theta)
    prefix = f"{architecture}.rope.scaling."
    kind = header.metadata.get(prefix + "type", "none")
    factor = header.metadata.get(prefix + "factor")
    if kind == "none" or factor is None:
        return None
    if kind not in ("linear", "yarn"):
        raise BadModel(f"{path} has rope scaling of type {kind!r}; axil knows linear, yarn and Llama 3's")
    if any(header.metadata.get(prefix + name, 1.0) != 1.0 for name in ("attn_factor", "yarn_attn_factor")):
        raise BadModel(f"{path} has rope scaling with an attention factor of its own, which axil does not know yet")
    scaling = {"rope_type": kind, "factor": float(factor)}
    for theirs, ours in _SCALING_FIELDS.items():
        if prefix + theirs in header.metadata:
            scaling[ours] = header.metadata[prefix + theirs]
    return scaling


def _llama3_scaling(header: GgufHeader, path: Path, theta: float) -> dict[str, Any]:
    """Find the parameters of Llama 3's scaling again, which GGUF stores as one factor per frequency."""
    tensor = header.tensors["rope_freqs.weight"]
    if tensor.kind != _FLOAT32:
        raise BadModel(f"{path} has rope_freqs.weight in ggml type {tensor.kind}; only float32 is known")
    count = math.prod(tensor.shape)
    with path.open("rb") as file:
        file.seek(tensor.offset)
        stored = struct.unpack(f"<{count}f", file.read(4 * count))
    factor = max(stored)
    expected = _llama3_factors(count, theta, factor)
    if any(abs(a - b) > 1e-3 * b for a, b in zip(stored, expected, strict=True)):
        raise BadModel(f"{path} has rope_freqs.weight that are not Llama 3's scaling, the only one that axil knows")
    return {"rope_type": "llama3", "factor": round(factor, 4), **_LLAMA3_ROPE}


def _llama3_factors(count: int, theta: float, factor: float) -> list[float]:
    original = _LLAMA3_ROPE["original_max_position_embeddings"]
    low, high = _LLAMA3_ROPE["low_freq_factor"], _LLAMA3_ROPE["high_freq_factor"]
    factors = []
    for i in range(count):
        wavelength = 2 * math.pi * theta ** (i / count)
        smooth = min(1.0, max(0.0, (original / wavelength - low) / (high - low)))
        factors.append(1 / ((1 - smooth) / factor + smooth))
    return factors
