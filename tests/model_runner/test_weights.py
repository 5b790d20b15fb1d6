from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from model_runner.model_config import read_model_config
from model_runner.models.decoder import Decoder
from model_runner.models.registry import make_model
from model_runner.weights import load_weights

from .conftest import load_directory, save_tiny

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
}


GGUF_NORMS = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm"}
GGUF_NORMS |= {"post_feedforward_layernorm": "post_ffw_norm"}
GGUF_ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}
QUANTISED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
PACKED = ("token_embd", "blk.0.ffn_up", "blk.2.ffn_down")


def _as_gguf(
    directory: Path, path: Path, *, extra: dict[str, np.ndarray] | None = None, packed_kind: str | None = None
) -> None:
    """Write a tiny checkpoint as llama.cpp's converter does; `packed_kind` is the type of the matrices in `PACKED`."""
    config = json.loads((directory / "config.json").read_text())
    architecture = GGUF_ARCHITECTURES.get(config["model_type"], config["model_type"])
    names = GGUF_NAMES | GGUF_NORMS if architecture == "gemma3" else GGUF_NAMES
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_token_list([f"token {i}" for i in range(config["vocab_size"])])
    writer.add_token_scores([0.0] * config["vocab_size"])
    for name, tensor in load_file(directory / "model.safetensors").items():
        values = tensor.numpy()
        for part, num_heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name and architecture == "llama":
                heads = config[num_heads]
                halves = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
                values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        if packed_kind is not None and name.removesuffix(".weight") in PACKED:
            kind = gguf.GGMLQuantizationType[packed_kind]
            writer.add_tensor(name, _packed(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _packed(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """The values in a type that the package can write, else random blocks of that type with finite scales."""
    try:
        return gguf.quantize(values, kind)
    except NotImplementedError:
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        shape = (len(values), values.shape[1] // block_size * block_bytes)
        return np.random.default_rng(len(values)).integers(0, 60, shape, np.uint8)


def _load(path: Path, config: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    model = make_model(read_model_config(config / "config.json"), dtype)
    load_weights(model, path, lambda done, total: None)
    return model


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", *QUANTISED])
def test_every_type_of_weights_is_what_the_gguf_package_makes_of_it(kind: str, tmp_path: Path) -> None:
    save_tiny("packable", tmp_path)
    _as_gguf(tmp_path, tmp_path / "tiny.gguf", packed_kind=kind)
    layers = (model := _load(tmp_path / "tiny.gguf", tmp_path)).layers
    ours = (model.embedding, layers[0].gate_up.weight[256:], layers[2].down.weight)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors}
    for name, values in zip(PACKED, ours, strict=True):
        tensor = stored[f"{name}.weight"]
        assert tensor.tensor_type.name == kind
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(expected).all()
        assert expected.std() > 0
        assert np.array_equal(values.numpy(), expected)


def test_a_type_of_weights_that_the_gguf_package_cannot_read_is_named(tmp_path: Path) -> None:
    save_tiny("packable", tmp_path)
    _as_gguf(tmp_path, tmp_path / "tiny.gguf", packed_kind="Q8_K")
    with pytest.raises(ValueError, match=r"tensor token_embd\.weight has the type Q8_K, which can't be read"):
        _load(tmp_path / "tiny.gguf", tmp_path)


@pytest.mark.parametrize("name", ["llama", "llama-tied", "llama-biases", "mistral", "qwen2", "qwen3", "gemma3"])
def test_a_gguf_file_gives_the_parameters_of_the_safetensors_it_was_made_of(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path)
    _as_gguf(tmp_path, tmp_path / "tiny.gguf")
    expected = dict(load_directory(tmp_path).parameters())
    for parameter, value in _load(tmp_path / "tiny.gguf", tmp_path).parameters():
        assert torch.equal(value, expected[parameter]), parameter


def test_packed_weights_are_what_the_gguf_package_makes_of_them(embedded: Decoder, embedded_path: Path) -> None:
    ours = {"token_embd.weight": embedded.embedding, "blk.0.ffn_down.weight": embedded.layers[0].down.weight}
    kinds = set()
    for tensor in gguf.GGUFReader(embedded_path).tensors:
        if tensor.name in ours:
            kinds.add(tensor.tensor_type.name)
            assert np.array_equal(gguf.dequantize(tensor.data, tensor.tensor_type), ours[tensor.name].numpy())
    assert kinds == {"Q8_0", "Q4_1"}


def test_a_gguf_file_with_rope_divisors_slows_the_rotary_frequencies(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    _as_gguf(tmp_path, tmp_path / "tiny.gguf", extra={"rope_freqs.weight": np.array([1, 2, 4, 8], np.float32)})
    rotary = _load(tmp_path / "tiny.gguf", tmp_path).rotary
    phases = rotary.angles(torch.tensor([1])).signed_sin[0, 0, 4:].asin()
    assert torch.allclose(phases, rotary.frequencies / torch.tensor([1, 2, 4, 8]), atol=1e-4)


def test_a_missing_an_unexpected_and_a_misshapen_tensor_are_named(tmp_path: Path) -> None:
    save_tiny("qwen2", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.self_attn.k_proj.bias"
    for change, sentence in (
        ({name: None}, f"lacks the tensor {name}"),
        ({"model.layers.1.extra": torch.ones(2)}, "no place for: model.layers.1.extra"),
        ({name: torch.ones(3)}, rf"{name} has shape \[3\], the configuration asks for \[16\]"),
    ):
        changed = {key: value for key, value in (tensors | change).items() if value is not None}
        save_file(changed, file)
        with pytest.raises(ValueError, match=sentence):
            load_directory(tmp_path)


def test_files_that_are_truncated_or_something_else_are_refused_by_path(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    _as_gguf(tmp_path, tmp_path / "whole.gguf")
    whole = (tmp_path / "whole.gguf").read_bytes()
    for size in (0, 3, 20, 600, 5000, len(whole) - 3000):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"cut\.gguf is truncated or holds no GGUF"):
            _load(tmp_path / "cut.gguf", tmp_path)
    (tmp_path / "cut.gguf").write_bytes(b"something else entirely, and long enough" * 10)
    with pytest.raises(ValueError, match=r"cut\.gguf is truncated or holds no GGUF"):
        _load(tmp_path / "cut.gguf", tmp_path)
    safetensors = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(safetensors[: len(safetensors) // 2])
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated or holds no safetensors"):
        load_directory(tmp_path)


def test_a_gguf_file_of_another_family_is_refused(tmp_path: Path) -> None:
    save_tiny("qwen2", tmp_path / "qwen2")
    save_tiny("llama", tmp_path / "llama")
    _as_gguf(tmp_path / "qwen2", tmp_path / "tiny.gguf")
    with pytest.raises(ValueError, match=r"tiny\.gguf holds a model of qwen2, the configuration is of llama"):
        _load(tmp_path / "tiny.gguf", tmp_path / "llama")


def test_a_checkpoint_without_its_files_is_refused_by_what_is_not_there(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "shards", max_shard_size="40KB")
    shard = sorted((tmp_path / "shards").glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ValueError, match=shard.name):
        load_directory(tmp_path / "shards")
    shutil.copy(tmp_path / "shards" / "config.json", tmp_path)
    with pytest.raises(ValueError, match=r"model\.safetensors is not there"):
        load_directory(tmp_path)
    with pytest.raises(ValueError, match="there is no checkpoint at"):
        _load(tmp_path / "nothing.gguf", tmp_path)


def test_progress_rises_to_the_whole_checkpoint(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    seen: list[tuple[int, int]] = []
    model = make_model(read_model_config(tmp_path / "config.json"), torch.float32)
    load_weights(model, tmp_path, lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_loading_takes_little_more_memory_than_the_weights(embedded_path: Path, embedded_config_path: Path) -> None:
    code = f"""
import resource
from pathlib import Path
import torch
from model_runner.model_config import read_model_config
from model_runner.models.registry import make_model
from model_runner.weights import load_weights
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = make_model(read_model_config(Path({str(embedded_config_path)!r})), torch.float32)
load_weights(model, Path({str(embedded_path)!r}), lambda done, total: None)
weights = sum(parameter.nbytes for _, parameter in model.parameters())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before * 1024 - weights)
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(run.stdout) < 200 << 20
