"""What `--deterministic` costs in matrix products: one layer's linears in plain torch, as they are and in blocks.

    python -m bench.deterministic

Attention and the missing graphs cost besides; those are a GPU's to tell (`bench.gpu`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch

from model_runner.invariant import BLOCK_ROWS, BlockedLinear, blocked
from model_runner.layers import Linear

NUM_TOKENS = (1, 8, 64, 128, 512)
_TURNS = 7


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.deterministic", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--hidden", type=int, default=576, help="the model's width (default: the embedded model's)")
    parser.add_argument("--inner", type=int, default=1536, help="the MLP's width (default: the embedded model's)")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    shapes = ((args.hidden, 5 * args.hidden // 3), (args.hidden, args.hidden), (args.hidden, 2 * args.inner))
    linears = [Linear(torch.randn(outs, ins), None) for ins, outs in (*shapes, (args.inner, args.hidden))]
    print(f"tokens  plain ms  in blocks of {BLOCK_ROWS} ms  ratio")
    for num_tokens in NUM_TOKENS:
        plain = _median_ms(linears, num_tokens)
        in_blocks = _median_ms([blocked(linear) for linear in linears], num_tokens)
        print(f"{num_tokens:6}  {plain:8.2f}  {in_blocks:16.2f}  {in_blocks / plain:5.1f}")


@torch.inference_mode()
def _median_ms(linears: Sequence[Linear | BlockedLinear], num_tokens: int) -> float:
    inputs = [torch.randn(num_tokens, linear.weight.shape[1]) for linear in linears]
    seconds = []
    for _ in range(_TURNS):
        start = time.perf_counter()
        for linear, x in zip(linears, inputs, strict=True):
            linear(x)
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds)


if __name__ == "__main__":
    main()
