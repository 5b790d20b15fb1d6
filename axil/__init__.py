"""axil, a serving runtime for large language models: the public face."""

from .origin import check_origins

check_origins()

__version__ = "0.1.0"

__all__ = ["__version__"]
