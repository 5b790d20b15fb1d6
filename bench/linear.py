"""How near do the CPU kernels' linear layers come to what the machine can do, and to torch's?

Prints, for each way of holding weights (`-a8`: tokens rounded to 8 bits too; `/32`: a scale for 32 columns) and each
number of tokens, medians of GB of weights read and of GFLOP computed a second, each with its share of the ceiling:
reading memory as fast as it goes, products of registers, measured between the repetitions. Weights are cycled through,
so that they come from memory. Only a quiet machine gives figures worth keeping.
    python -m bench.linear --shape 3072x576
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from bench import results, summary
from bench.command import count, exit_status, parser_of
from model_runner.kernel_choice import load_library
from model_runner.kernels.library import Int, Library, Pointer, huge_tensor
from model_runner.kernels.linear import LinearKernels
from model_runner.ladder import Products

NUM_TOKENS = (1, 2, 4, 8, 32, 128, 512)
_POOL_BYTES = 128 << 20
_MAX_COPIES = 300
_PLAIN = str.maketrans("/- ", "___")


class Ceilings:
    """The machine's limits, measured in moments between other measurements."""

    def __init__(self, library: Library) -> None:
        self._read = library.function("axil_read_all", Pointer, Int, result=ctypes.c_int64)
        self._multiply = library.function("axil_multiply_all", ctypes.c_int32, Int, result=ctypes.c_int64)
        self._memory = huge_tensor((_POOL_BYTES,), torch.uint8).fill_(1)
        self._at = 0

    def read(self, num_bytes: int) -> float:
        """Bytes a second, reading on where the last call ended."""
        if self._at + num_bytes > len(self._memory):
            self._at = 0
        seconds = timed(lambda: self._read(self._memory.data_ptr() + self._at, num_bytes))
        self._at += num_bytes
        return num_bytes / seconds

    def multiply(self) -> float:
        """Floating point operations a second, in float32."""
        started = time.perf_counter()
        return float(self._multiply(Products.FLOAT32, 20_000)) / (time.perf_counter() - started)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = parser_of("bench.linear", __doc__)
    parser.add_argument("--shape", default="3072x576", help="outputs x inputs (default: 3072x576)")
    parser.add_argument("--threads", type=count, default=torch.get_num_threads(), help="threads (default: all cores)")
    parser.add_argument("--repeats", type=count, default=30, help="repetitions of each (default: 30)")
    results.add_json_flag(parser)
    args = parser.parse_args(argv)
    library = load_library()
    if library is None:
        parser.error("there are no kernels on this machine")
    library.set_threads(args.threads)
    torch.set_num_threads(args.threads)
    num_outputs, num_columns = (int(number) for number in args.shape.split("x"))
    ceilings = Ceilings(library)
    figures: dict[str, float] = {}
    for name, layers, num_bytes in _layers(library, num_outputs, num_columns):
        rows = {}
        for num_tokens in NUM_TOKENS:
            row = measured(layers, num_bytes, num_tokens, (num_outputs, num_columns), ceilings, args.repeats)
            rows[f"{num_tokens} tokens"] = row
            figures |= {f"{name.translate(_PLAIN)}_m{num_tokens}_{key}": value for key, value in row.items()}
        print(f"\n{name}")
        print(summary.table(rows))
    results.write(args.json, figures, results.command_line("bench.linear"))
    return 0


Layer = Callable[[torch.Tensor], torch.Tensor]


def _layers(library: Library, num_outputs: int, num_columns: int) -> list[tuple[str, list[Layer], int]]:
    """(name, copies enough to come from memory, bytes of one's weights)."""
    values = torch.randn(num_outputs, num_columns) / num_columns**0.5
    found: list[tuple[str, list[Layer], int]] = []
    kernels = LinearKernels(library)
    for kind in kernels.kinds:
        first = kernels.make(num_outputs, num_columns, kind)
        copies = [first]
        first.write(0, values)
        while len(copies) < min(_MAX_COPIES, _POOL_BYTES // first.memory.nbytes):
            copy = kernels.make(num_outputs, num_columns, kind)
            copy.memory.copy_(first.memory)
            copies.append(copy)
        found.append((kind.name, list(copies), first.memory.nbytes))
    for dtype in (torch.float32, torch.bfloat16):
        weights = [values.to(dtype) for _ in range(min(_MAX_COPIES, _POOL_BYTES // (values.numel() * dtype.itemsize)))]
        layers: list[Layer] = [lambda x, w=w: F.linear(x.to(w.dtype), w) for w in weights]  # type: ignore[misc]
        found.append((f"torch {str(dtype).removeprefix('torch.')}", layers, weights[0].nbytes))
    return found


def measured(
    layers: Sequence[Layer],
    num_bytes: int,
    num_tokens: int,
    shape: tuple[int, int],
    ceilings: Ceilings,
    repeats: int,
) -> dict[str, float]:
    """Medians of GB/s, GFLOP/s and of their shares of what the machine did in the moments beside."""
    num_outputs, num_columns = shape
    x = torch.randn(num_tokens, num_columns)
    flops = 2.0 * num_tokens * num_outputs * num_columns
    layers[-1](x)
    rates, reads, products = [], [], []
    for i in range(repeats):
        rates.append(1 / timed(lambda: layers[i % len(layers)](x)))  # noqa: B023
        reads.append(rates[-1] * num_bytes / ceilings.read(max(num_bytes, 1 << 20)))
        products.append(rates[-1] * flops / ceilings.multiply())
    rate = statistics.median(rates)
    return {
        "gb_per_s": rate * num_bytes / 1e9,
        "read_share": statistics.median(reads),
        "gflop_per_s": rate * flops / 1e9,
        "fma_share": statistics.median(products),
    }


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
