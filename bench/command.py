"""What the command lines of all measurements share: parsers of numbers, one error, one way to report it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path


class CannotMeasure(Exception):
    """There is nothing to measure, or the measurement would be wrong; the message says what to do."""


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the module's docstring, with its examples as they stand."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def count(text: str) -> int:
    """A whole number from 1 on."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def positive(text: str) -> float:
    """A number above 0; a fraction such as 1/8 works too."""
    value = float(Fraction(text))
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be more than 0, got {text}")
    return value


def directory(text: str) -> Path:
    """A directory that is there."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is no directory; create it or name another")
    return path


def exit_status(main: Callable[[], int]) -> int:
    """Run `main`; 2 with one clear line when nothing could be measured, 130 when interrupted."""
    try:
        return main()
    except CannotMeasure as error:
        print(f"nothing measured: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
