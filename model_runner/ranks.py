"""The runner processes that compute one model together, and what they say to each other: NCCL on GPUs, gloo on CPUs.

All ranks run the same steps, so they come to the same calls in the same order. Knows no model.
"""

# B rows

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch._C._distributed_c10d import FileStore

_PATIENCE = timedelta(minutes=10)
"""How far apart ranks may come to the same call: they read their weights at their own pace."""


class RankLost(Exception):
    """Another rank went away in the middle of a call."""


class Ranks(Protocol):
    """One rank's view of its group."""

    @property
    def rank(self) -> int:
        """This one's number, from 0 on."""

    @property
    def num_ranks(self) -> int:
        """How many there are."""

    def summed(self, x: Tensor) -> Tensor:
        """The sum over all ranks; may overwrite its argument."""

    def joined_on_first(self, x_BX: Tensor, num_columns: int) -> Tensor:
        """On rank 0 all ranks' columns side by side, `num_columns` in all, cut into equal stretches but the last ones.

        On the others zeros of that shape, not to be written to: what it stands for is of no use there.
        """

    def take_first_(self, x: Tensor) -> None:
        """Overwrite `x` with that of rank 0."""

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers."""


class Alone:
    """One process that computes the whole model."""

    rank = 0
    num_ranks = 1

    def summed(self, x: Tensor) -> Tensor:
        """It is the sum."""
        return x

    def joined_on_first(self, x_BX: Tensor, num_columns: int) -> Tensor:
        """It is all."""
        return x_BX

    def take_first_(self, x: Tensor) -> None:
        """It is the first one's."""

    def least(self, number: int) -> int:
        """It is the smallest."""
        return number


class Group:
    """A process group of torch.

    With `is_order_fixed` sums run in the order of ranks, whatever the shape: a reduction along a ring begins each
    stretch of a tensor at another rank, so that a token's last bits would depend on its place in the batch.
    """

    def __init__(self, *, rank: int, num_ranks: int, device: torch.device, is_order_fixed: bool) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._device = device
        self._is_order_fixed = is_order_fixed

    def summed(self, x: Tensor) -> Tensor:
        """The sum over all ranks; may overwrite its argument."""
        with _named():
            if not self._is_order_fixed:
                dist.all_reduce(x)
                return x
            total, *others = self._all(x)
            for other in others:
                total.add_(other)
            return total

    def joined_on_first(self, x_BX: Tensor, num_columns: int) -> Tensor:
        """On rank 0 all ranks' columns side by side; zeros on the others, which send theirs and get none."""
        stretch = -(-num_columns // self.num_ranks)
        own = F.pad(x_BX, (0, stretch - x_BX.shape[-1])).contiguous()
        columns = [torch.empty_like(own) for _ in range(self.num_ranks)] if self.rank == 0 else None
        with _named():
            dist.gather(own, columns, dst=0)
        if columns is None:
            return x_BX.new_zeros(()).expand(len(x_BX), num_columns)
        return torch.cat(columns, dim=-1)[..., :num_columns].contiguous()

    def take_first_(self, x: Tensor) -> None:
        """Overwrite `x` with that of rank 0, device to device."""
        with _named():
            dist.broadcast(x, src=0)

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers."""
        all_numbers = torch.tensor(number, dtype=torch.int64, device=self._device)
        with _named():
            dist.all_reduce(all_numbers, op=dist.ReduceOp.MIN)
        return int(all_numbers)

    def _all(self, x: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.num_ranks)]
        dist.all_gather(parts, x.contiguous())
        return parts


def join(run_dir: Path, device: torch.device, *, rank: int, num_ranks: int, is_order_fixed: bool) -> Ranks:
    """Meet the other ranks, by way of a file in the launch's directory, and wait for them.

    Raises:
        RankLost: they did not all come.
    """
    if num_ranks == 1:
        return Alone()
    # All ranks are on this machine: gloo would ask for the address of the machine's name.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with _named():
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=FileStore(str(run_dir / "ranks"), num_ranks),
            rank=rank,
            world_size=num_ranks,
            timeout=_PATIENCE,
            # NCCL connects here then, and not within the first sum, which may be in a step that is recorded.
            device_id=device if device.type == "cuda" else None,
        )
    return Group(rank=rank, num_ranks=num_ranks, device=device, is_order_fixed=is_order_fixed or device.type == "cpu")


@contextmanager
def _named() -> Iterator[None]:
    """Torch has one type for all that goes wrong between ranks."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(f"a rank of the group did not answer: {str(error).partition(chr(10))[0]}") from error
