"""Small random models of families that have no code of ours, saved as transformers saves them."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    DeepseekV3Config,
    Gemma2Config,
    Glm4Config,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    MixtralConfig,
    NemotronConfig,
    Olmo2Config,
    OPTConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2MoeConfig,
    SmolLM3Config,
    Starcoder2Config,
)

from .sizes import SHAPE, VOCABULARY

IDS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = IDS | SHAPE
ONE_HEAD_EACH = SIZES | {"num_key_value_heads": 6}

FAMILIES: dict[str, PreTrainedConfig] = {
    "phi3": Phi3Config(**SIZES, sliding_window=13),
    "olmo2": Olmo2Config(**SIZES),
    "granite": GraniteConfig(
        **SIZES, attention_multiplier=0.2, logits_scaling=3.0, embedding_multiplier=2.0, residual_multiplier=0.7
    ),
    "starcoder2": Starcoder2Config(**SIZES, sliding_window=11),
    "gemma2": Gemma2Config(
        **SIZES, head_dim=16, query_pre_attn_scalar=20, sliding_window=13, attn_logit_softcapping=2.0
    ),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=4, sliding_window=None),
    "qwen2-moe": Qwen2MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32
    ),
    "cohere": CohereConfig(**SIZES, logit_scale=0.3),
    "cohere2": Cohere2Config(**SIZES, sliding_window=9, sliding_window_pattern=2),
    "smollm3": SmolLM3Config(**SIZES, no_rope_layer_interval=2),
    "glm4": Glm4Config(**SIZES, head_dim=8),
    "nemotron": NemotronConfig(**SIZES, head_dim=8),
    "gpt-neox": GPTNeoXConfig(**ONE_HEAD_EACH),
    "gpt2": GPT2Config(**IDS, n_embd=48, n_layer=3, n_head=6, n_positions=2048, initializer_range=0.3),
    "opt": OPTConfig(
        **IDS,
        hidden_size=48,
        word_embed_proj_dim=48,
        ffn_dim=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        max_position_embeddings=2048,
        init_std=0.3,
    ),
    "deepseek-v3": DeepseekV3Config(
        **ONE_HEAD_EACH,
        kv_lora_rank=16,
        q_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
    ),
}


def save_foreign(config: PreTrainedConfig, directory: Path) -> PreTrainedModel:
    """A random model of a configuration, saved to a directory."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases start as ones and zeros, which hides mistakes
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return model
