"""Finds a model by its name on the Hugging Face hub: in the local cache, else by downloading it there.

Where the cache is, whether the network may be used and with which token is `huggingface_hub`'s business (HF_HOME,
HF_HUB_OFFLINE, HF_TOKEN). Only what axil reads is downloaded.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from .errors import BadModel

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(?<!\.gguf)")
_INDEX = "model.safetensors.index.json"
_FILES = ["config.json", "generation_config.json", "tokenizer*", "chat_template*", "special_tokens_map.json"]
_WEIGHTS = ["model.safetensors", "model-*.safetensors", _INDEX]


def is_hub_id(name: str) -> bool:
    """Whether it has the form of a model's name on the hub.

    >>> is_hub_id("org/name"), is_hub_id("/etc/name"), is_hub_id("name"), is_hub_id("./name"), is_hub_id("a/b.gguf")
    (True, False, False, False, False)
    """
    return _HUB_ID.fullmatch(name) is not None


def find_hub_model(name: str) -> Path:
    """The directory of the model; a whole one in the cache is taken as it is, without asking the network.

    Raises:
        BadModel: it is neither in the cache nor to be had; the message has the hub's reason.
    """
    from huggingface_hub import snapshot_download  # slow, and only for models of the hub
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    wanted = _FILES + _WEIGHTS
    try:
        cached = Path(snapshot_download(name, allow_patterns=wanted, local_files_only=True))
        if _is_whole(cached):
            return cached
    except (OSError, ValueError):
        pass  # not in the cache; the download below gives the reason if there is one
    try:
        found = Path(snapshot_download(name, allow_patterns=wanted))
    except GatedRepoError as error:
        raise BadModel(
            f"the hub gives {name} only to those who accepted its terms: accept them on its page and set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise BadModel(
            f"there is no path {name}, and the hub has no such model or does not show it; "
            "check the name, or set HF_TOKEN for a private one"
        ) from error
    except LocalEntryNotFoundError as error:
        raise BadModel(
            f"there is no path {name}, the local hub cache does not have that model whole, and the hub can't be "
            "reached (or HF_HUB_OFFLINE is set). Download it where there is a network, or give the path of a directory."
        ) from error
    except (OSError, ValueError) as error:
        raise BadModel(f"can't download {name} from the hub: {error}") from error
    if not _is_whole(found):  # without a network the hub's package is content with what an interrupted download left
        raise BadModel(
            f"{name} is not whole in {found}: config.json, tokenizer.json and all of the weights as safetensors are "
            "needed. Try again where there is a network, or choose a model that has them."
        )
    return found


def _is_whole(directory: Path) -> bool:
    """Whether everything that must be there is: a download may have been interrupted."""
    names = ["config.json", "tokenizer.json"]
    index = directory / _INDEX
    names += json.loads(index.read_text())["weight_map"].values() if index.exists() else ["model.safetensors"]
    return all((directory / name).is_file() for name in names)
