"""Reads configuration and weights of a model in the form and by the code of transformers, or says why not.

What only a running model shows is `probe`'s.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from model_runner.rope_config import FULL, SLIDING

log = logging.getLogger(__name__)

VERSION: str = transformers.__version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model that transformers has code for; `context_tokens` is what it was made for."""

    config: PretrainedConfig
    name: str
    context_tokens: int


def read_source(path: Path) -> Source:
    """Read a `config.json`; nothing outside of transformers' own code is run.

    Raises:
        ValueError: transformers has no code for it, or the model needs what isn't supported; the message says what.
    """
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"transformers {VERSION} can't read {path}: {reason}") from error
    try:
        name = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__
        _refuse_unsupported(config)
        return Source(config=config, name=name, context_tokens=_context_tokens(config))
    except KeyError:
        name, reason = config.model_type, "transformers has no decoder of text for it"
    except ValueError as error:
        reason = str(error)
    raise refusal(name, reason)


def refusal(name: str, reason: object) -> ValueError:
    """The error for a model that can't be served in transformers' code."""
    return ValueError(f"{name} can't be served through transformers {VERSION}: {reason}")


def num_bytes(source: Source, dtype: torch.dtype) -> int:
    """Memory that the weights take."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(source.config, dtype=dtype, trust_remote_code=False)
    return sum(parameter.nbytes for parameter in model.parameters())


def load_causal(source: Source, directory: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its weights, computing attention as transformers does.

    Raises:
        ValueError: a file is damaged, or a tensor missing, unexpected or of another shape; names it.
    """
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # what it would warn of is refused below, in one line
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            directory,
            config=source.config,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except SafetensorError as error:
        raise ValueError(f"the safetensors in {directory} are truncated or none: {error}") from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        wrong = sorted(map(str, info[kind]))
        if wrong:
            raise ValueError(f"{directory} has {kind.replace('_', ' ')}: {wrong[0]} ({len(wrong)} in all)")
    causal: PreTrainedModel = model.eval()
    return causal


def _refuse_unsupported(config: PretrainedConfig) -> None:
    own_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    asked = config.architectures or [own_class.__name__]
    # A name that transformers doesn't have is that of code beside the weights, before transformers took it in.
    if own_class.__name__ not in asked and hasattr(transformers, asked[0]):
        raise ValueError(f"{asked[0]} does not generate text; {own_class.__name__} would")
    if config.is_encoder_decoder:
        raise ValueError("it has an encoder")
    if config.sub_configs:
        raise ValueError(f"it takes more than text ({', '.join(config.sub_configs)})")
    if getattr(config, "quantization_config", None):
        raise ValueError("quantization_config is not supported; serve unquantised safetensors")
    strange = set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING}
    if strange:
        raise ValueError(f"it has layers of {', '.join(sorted(strange))}; known are {FULL} and {SLIDING}")
    if not own_class._supports_attention_backend:
        raise ValueError("its code does not use transformers' attention interface")


def _context_tokens(config: PretrainedConfig) -> int:
    context_tokens = getattr(config, "max_position_embeddings", None)
    if not isinstance(context_tokens, int):
        raise ValueError("its configuration has no max_position_embeddings")
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        kind = parameters.get("rope_type", "default")
        if kind == "dynamic":
            raise ValueError("rope_type dynamic turns tokens by the length of the prompt, so no prefix could be reused")
        if kind == "longrope":
            original = parameters["original_max_position_embeddings"]
            if original < context_tokens:
                log.warning(
                    "context shortened to %d tokens: longrope turns a longer prompt's tokens otherwise, "
                    "so its prefixes could not be reused",
                    original,
                )
            context_tokens = min(context_tokens, original)
    return context_tokens
