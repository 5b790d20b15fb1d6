"""Small GGUF files, written with the gguf package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter


def byte_characters() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in the order of the bytes."""
    spare = iter(range(256, 512))
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    fields: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    tokenizer: dict[str, Any] | None = None,
) -> Path:
    """Write a model with 4 heads of 8; a field of None is left out."""
    merged: dict[str, Any] = {
        "block_count": 2,
        "context_length": 128,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    } | (fields or {})
    writer = GGUFWriter(path, architecture)
    for name, value in merged.items():
        if value is not None:
            _add(writer, f"{architecture}.{name}", value)
    for name, value in (byte_level_tokenizer() if tokenizer is None else tokenizer).items():
        _add(writer, name if name.startswith("tokenizer.") else f"tokenizer.ggml.{name}", value)
    for name, tensor in ({"token_embd.weight": np.zeros((300, 32), np.float32)} | (tensors or {})).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_level_tokenizer(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any GGUF value
    """A tokenizer of the 256 bytes, `th`, `the`, digits in pairs, and the tokens `<|end|>` and `<tool>`."""
    tokens = [*byte_characters(), "th", "the", "12", "Ġ1", "<|end|>", "<tool>"]
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [1] * (len(tokens) - 2) + [3, 4],
        "merges": ["t h", "th e", "1 2", "Ġ 1"],
        "eos_token_id": len(tokens) - 2,
    } | fields


def _add(writer: GGUFWriter, key: str, value: Any) -> None:  # noqa: ANN401 - any GGUF value
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
