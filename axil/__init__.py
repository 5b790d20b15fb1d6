"""axil, a serving runtime for large language models: the public face."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import origin as _origin

if _TYPE_CHECKING:
    from runtime.completion import Chunk as Chunk
    from runtime.completion import Completion as Completion
    from runtime.engine import Engine as Engine
    from wire.errors import AxilError as AxilError
    from wire.sampling import SamplingParams as SamplingParams

_origin.check_origins()

__version__ = "0.1.0"

__all__ = ["AxilError", "Chunk", "Completion", "Engine", "SamplingParams", "__version__"]

# Imported at first use, so that `import axil` and `axil --version` stay quick.
_HOMES = {
    "AxilError": "wire.errors",
    "Chunk": "runtime.completion",
    "Completion": "runtime.completion",
    "Engine": "runtime.engine",
    "SamplingParams": "wire.sampling",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'axil' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
