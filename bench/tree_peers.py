"""Runs SGLang's trees and vLLM's block pool on the operations that ours is measured on, and prints the ratios.

What is measured, and how, stands in `peer_trees`, which runs in the interpreters that have them.
"""

from __future__ import annotations

import json
import pickle
import subprocess
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import peer_trees
from .peer_trees import Inputs

if TYPE_CHECKING:
    import numpy.typing as npt

CHAIN_TURNS = 1024
NUM_LEAVES = 100_000
_START_S = 180.0
_MOST_OPERATIONS = 8


def print_peers(
    pythons: Sequence[Path], ours: Mapping[str, float], *, names: Sequence[str], limit_s: float
) -> dict[str, float]:
    """Run each peer in the first of these interpreters that can, beside our figures; returns the ratios to ours.

    An operation may take `limit_s` of wall time, what it is measured on included.
    """
    if not pythons:
        print("peers: none were run; --peers-python names interpreters that have SGLang or vLLM")
        return {}
    inputs = pickle.dumps(_inputs())
    ratios: dict[str, float] = {}
    for peer in names:
        for name, figure in _first_that_can(pythons, peer, inputs, limit_s):
            label = f"{peer:<16}{name:<26}"
            if figure is None:
                print(f"{label}{f'>{limit_s:g} s':>12}", flush=True)
            elif name in ours:
                ratio = figure / ours[name]
                ratios[f"{peer.replace(' ', '_')}_{name}_ratio"] = ratio
                print(f"{label}{figure:>12.1f}{ratio:>12.1f} times ours", flush=True)
    return ratios


def _first_that_can(
    pythons: Sequence[Path], peer: str, inputs: bytes, limit_s: float
) -> Iterator[tuple[str, float | None]]:
    """The peer's figures by the first interpreter that gives any, with a line for each that gives none or not all."""
    for python in pythons:
        figures, reason = _run(python, peer, inputs, limit_s)
        if reason:
            print(f"{peer}: {'not all' if figures else 'not'} run by {python}: {reason}", flush=True)
        if figures:
            yield from figures
            return


def _run(python: Path, peer: str, inputs: bytes, limit_s: float) -> tuple[list[tuple[str, float | None]], str]:
    """The figures that the peer gave in this interpreter, and why it gave no more: nothing where it gave all."""
    command = [str(python), "-P", str(Path(peer_trees.__file__).resolve()), peer, str(limit_s)]
    reason = ""
    try:
        done = subprocess.run(
            command, input=inputs, capture_output=True, check=False, timeout=_START_S + _MOST_OPERATIONS * limit_s
        )
        printed = done.stdout
        if done.returncode:
            reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason was given"])[-1]
    except OSError as error:
        return [], str(error)
    except subprocess.TimeoutExpired as error:
        printed, reason = error.stdout or b"", f"it didn't end within {error.timeout:g} s"
    figures = [json.loads(line) for line in printed.splitlines() if line.startswith(b'["')]
    return [(name, figure) for name, figure in figures], reason


def _inputs() -> Inputs:
    import numpy as np

    from .tree_shapes import PAGE_TOKENS, TURN_TOKENS, agent, few_shot, unique

    def ids(tokens: npt.NDArray[Any]) -> array[int]:
        return array("q", tokens.tolist())

    draw = np.random.default_rng(7)

    traces = {
        name: [(ids(tokens[: len(prompt) // 4]), ids(tokens)) for prompt, tokens in requests]
        for name, requests in (("agent", agent()), ("few_shot", few_shot()), ("unique", unique()))
    }
    return Inputs(
        traces=traces,
        turns=[ids(turn) for turn in draw.integers(0, 1 << 17, (CHAIN_TURNS, TURN_TOKENS))],
        siblings=[ids(turn) for turn in draw.integers(0, 1 << 17, (CHAIN_TURNS, TURN_TOKENS))],
        leaves=[ids(leaf) for leaf in draw.integers(0, 1 << 30, (NUM_LEAVES, PAGE_TOKENS))],
    )
