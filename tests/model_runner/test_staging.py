from __future__ import annotations

import numpy as np
import pytest
import torch

from model_runner.staging import Staging

CPU = torch.device("cpu")


class Stream:
    """A device that runs nothing until it is waited for; fences count what was set and waited for."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._names = iter("abcd")

    def fence(self) -> Recorded:
        return Recorded(next(self._names), self.events)


class Recorded:
    def __init__(self, name: str, events: list[str]) -> None:
        self._name, self._events = name, events

    def set(self) -> None:
        self._events.append(f"set {self._name}")

    def wait(self) -> None:
        self._events.append(f"wait {self._name}")


def test_memory_is_given_out_again_only_behind_the_fence_of_the_step_that_had_it() -> None:
    stream = Stream()
    staging = Staging(CPU, new_fence=stream.fence)
    for _ in range(5):
        with staging.step():
            staging.host(np.arange(3))
    order = ["b", "c", "d", "a", "b"]
    assert stream.events == [f"{what} {name}" for name in order for what in ("wait", "set")]


def test_copies_of_a_step_do_not_overlap_whatever_their_sizes_and_types() -> None:
    staging = Staging(CPU)
    random = np.random.default_rng(0)
    for _ in range(6):
        arrays = [random.integers(0, 99, int(n)).astype(t) for n in (1, 7, 0, 30_000, 5) for t in (np.int32, np.int64)]
        with staging.step():
            copies = [(staging.host(array), staging.device(array)) for array in arrays]
        for array, pair in zip(arrays, copies, strict=True):
            for copy in pair:
                assert copy.numpy().dtype == array.dtype
                assert np.array_equal(copy.numpy(), array)


def test_what_is_on_the_device_outlives_the_ring() -> None:
    staging = Staging(CPU)
    with staging.step():
        first = staging.device(np.full(4, 7))
    for _ in range(8):
        with staging.step():
            staging.host(np.zeros(4, np.int64))
    assert first.tolist() == [7] * 4


def test_a_step_that_fails_is_fenced_too() -> None:
    stream = Stream()
    staging = Staging(CPU, new_fence=stream.fence)
    with pytest.raises(KeyError), staging.step():
        raise KeyError
    assert stream.events == ["wait b", "set b"]
