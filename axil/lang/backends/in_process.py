"""An `axil.Engine` in the caller's own process."""

from __future__ import annotations

from axil.lang.home import Home
from runtime.engine import Engine


class InProcess:
    """Answers calls by an engine."""

    def __init__(self, engine: Engine) -> None:
        self.home = Home()
        self._engine = engine
