"""axil, a serving runtime for large language models: the public face."""

from . import origin as _origin

_origin.check_origins()

__version__ = "0.1.0"

__all__ = ["__version__"]
