"""Writes a checkpoint into a model's parameters. Knows what the formats have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .gguf_weights import ROPE_DIVISORS, gguf_tensors
from .model_config import ModelConfig
from .models.decoder import Decoder, DecoderShape
from .safetensors_weights import safetensors_files, safetensors_tensors
from .source import TensorDestination

OnProgress = Callable[[int, int], None]
"""Called with the bytes read so far and those of the whole checkpoint."""


def weight_files(path: Path) -> list[Path]:
    """The files that hold a checkpoint's weights.

    Raises:
        ValueError: there are none.
    """
    if path.is_dir():
        return safetensors_files(path)
    if path.is_file():
        return [path]
    raise ValueError(f"there is no checkpoint at {path}; give a .gguf file or a directory with safetensors")


def stored_types(path: Path, config: ModelConfig, shape: DecoderShape) -> dict[str, str]:
    """The GGUF types of a checkpoint's tensors by their names in transformers; empty for safetensors.

    Raises:
        ValueError: the checkpoint can't be read.
    """
    tensors = [] if path.is_dir() else gguf_tensors(path, config, shape)
    return {tensor.name: tensor.gguf_type for tensor in tensors if tensor.gguf_type is not None}


def load_weights(model: Decoder, path: Path, on_progress: OnProgress) -> None:
    """Fill all parameters of `model`, its share, from a `.gguf` file or a directory with safetensors.

    Raises:
        ValueError: the checkpoint can't be read, or a tensor is missing, unexpected or of another shape; names it.
    """
    files = weight_files(path)
    tensors = safetensors_tensors(files) if path.is_dir() else gguf_tensors(path, model.config, model.shape)
    # GGUF files hold them with the 1 added.
    has_centred_norms = model.shape.is_norm_centred and path.is_dir()
    destinations = dict(model.destinations())
    missing = sorted(destinations.keys() - {tensor.name for tensor in tensors})
    if missing:
        raise ValueError(f"{path} lacks the tensor {missing[0]} ({len(missing)} missing in all)")
    if model.config.rope_scaling is None:
        destinations[ROPE_DIVISORS] = TensorDestination(model.rotary.divisors)
    total_bytes = sum(tensor.num_bytes for tensor in tensors)
    done_bytes = 0
    for tensor in tensors:
        destination = destinations.get(tensor.name)
        if destination is not None:
            part = model.share.part(tensor.name, destination.shape)
            if tensor.shape != part.whole_shape:
                raise ValueError(
                    f"{path}: tensor {tensor.name} has shape {list(tensor.shape)}, "
                    f"the configuration asks for {list(part.whole_shape)}"
                )
            tensor.write_to(destination, part)
            if has_centred_norms and tensor.name.endswith("norm.weight"):
                assert isinstance(destination, TensorDestination), "norms are tensors"
                destination.tensor.add_(1)
        elif not _may_be_ignored(tensor.name, model):
            raise ValueError(f"{path} holds a tensor that the model has no place for: {tensor.name}")
        done_bytes += tensor.num_bytes
        on_progress(done_bytes, total_bytes)


def _may_be_ignored(name: str, model: Decoder) -> bool:
    """Whether the tensor is another rank's, or repeats what the model has from elsewhere."""
    is_repeated_head = name == "lm_head.weight" and model.config.is_embedding_tied
    if not model.share.holds(name):
        return True
    return is_repeated_head or name == ROPE_DIVISORS or name.endswith("rotary_emb.inv_freq")
