"""Small model folders, written without torch: bytes are tokens, and weights are random or a given succession."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.fakes import VOCABULARY, write_model_dir

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, MLP = 32, 2, 1, 16, 2, 64


def write_tiny_model(directory: Path, *, context_tokens: int = 512, seed: int = 0, head_dim: int = HEAD_DIM) -> Path:
    """A random Llama over bytes whose next token depends on all before it."""
    write_model_dir(directory)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head_dim,
        "max_position_embeddings": context_tokens,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "eos_token_id": 257,
    }
    (directory / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(seed)

    def weight(*shape: int, scale: float = 0.3) -> np.ndarray:
        return random.normal(0, scale, shape).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": weight(VOCABULARY, HIDDEN, scale=1.0),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": weight(VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        tensors |= {
            f"{name}input_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{name}post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{name}self_attn.q_proj.weight": weight(HEADS * head_dim, HIDDEN),
            f"{name}self_attn.k_proj.weight": weight(KV_HEADS * head_dim, HIDDEN),
            f"{name}self_attn.v_proj.weight": weight(KV_HEADS * head_dim, HIDDEN),
            f"{name}self_attn.o_proj.weight": weight(HIDDEN, HEADS * head_dim),
            f"{name}mlp.gate_proj.weight": weight(MLP, HIDDEN),
            f"{name}mlp.up_proj.weight": weight(MLP, HIDDEN),
            f"{name}mlp.down_proj.weight": weight(HIDDEN, MLP),
        }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
