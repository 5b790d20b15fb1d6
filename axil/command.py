"""The `axil` command. Importing it has already checked that axil's packages are its own."""

from __future__ import annotations

from runtime.cli import run

from . import __version__


def main() -> int:
    """Entry point of the console script."""
    return run(version=__version__)
