"""axil, a serving runtime for large language models: the public face."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import origin as _origin

if _TYPE_CHECKING:
    from axil.lang.backend import Backend as Backend
    from axil.lang.backends.openai_compatible import OpenAICompatible as OpenAICompatible
    from axil.lang.backends.server import Server as Server
    from axil.lang.context import use_backend as use_backend
    from axil.lang.errors import ProgramError as ProgramError
    from axil.lang.expressions import assistant as assistant
    from axil.lang.expressions import assistant_begin as assistant_begin
    from axil.lang.expressions import assistant_end as assistant_end
    from axil.lang.expressions import gen as gen
    from axil.lang.expressions import image as image
    from axil.lang.expressions import select as select
    from axil.lang.expressions import system as system
    from axil.lang.expressions import system_begin as system_begin
    from axil.lang.expressions import system_end as system_end
    from axil.lang.expressions import user as user
    from axil.lang.expressions import user_begin as user_begin
    from axil.lang.expressions import user_end as user_end
    from axil.lang.home import blocking as blocking
    from axil.lang.program import function as function
    from axil.lang.state import State as State
    from runtime.completion import Chunk as Chunk
    from runtime.completion import Completion as Completion
    from runtime.engine import Engine as Engine
    from runtime.forced_forms import choice as choice
    from runtime.forced_forms import ebnf as ebnf
    from runtime.forced_forms import json_schema as json_schema
    from runtime.forced_forms import regex as regex
    from wire.errors import AxilError as AxilError
    from wire.sampling import SamplingParams as SamplingParams

_origin.check_origins()

__version__ = "0.1.0"

# Imported at first use, so that `import axil` and `axil --version` stay quick.
_HOMES = {
    "AxilError": "wire.errors",
    "Backend": "axil.lang.backend",
    "Chunk": "runtime.completion",
    "Completion": "runtime.completion",
    "Engine": "runtime.engine",
    "OpenAICompatible": "axil.lang.backends.openai_compatible",
    "ProgramError": "axil.lang.errors",
    "SamplingParams": "wire.sampling",
    "Server": "axil.lang.backends.server",
    "State": "axil.lang.state",
    "assistant": "axil.lang.expressions",
    "assistant_begin": "axil.lang.expressions",
    "assistant_end": "axil.lang.expressions",
    "blocking": "axil.lang.home",
    "choice": "runtime.forced_forms",
    "ebnf": "runtime.forced_forms",
    "function": "axil.lang.program",
    "gen": "axil.lang.expressions",
    "image": "axil.lang.expressions",
    "json_schema": "runtime.forced_forms",
    "regex": "runtime.forced_forms",
    "select": "axil.lang.expressions",
    "system": "axil.lang.expressions",
    "system_begin": "axil.lang.expressions",
    "system_end": "axil.lang.expressions",
    "use_backend": "axil.lang.context",
    "user": "axil.lang.expressions",
    "user_begin": "axil.lang.expressions",
    "user_end": "axil.lang.expressions",
}

__all__ = [
    "AxilError",
    "Backend",
    "Chunk",
    "Completion",
    "Engine",
    "OpenAICompatible",
    "ProgramError",
    "SamplingParams",
    "Server",
    "State",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "blocking",
    "choice",
    "ebnf",
    "function",
    "gen",
    "image",
    "json_schema",
    "regex",
    "select",
    "system",
    "system_begin",
    "system_end",
    "use_backend",
    "user",
    "user_begin",
    "user_end",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'axil' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
