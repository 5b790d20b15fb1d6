"""Many who look at the doctor's findings have one diagnosis made."""

from __future__ import annotations

import asyncio

import pytest

from runtime.doctor.diagnosis import Diagnosis
from runtime.doctor.latest import LatestDiagnosis


class Making:
    """Makes diagnoses of 2 s each on a clock of its own; the next is held until `go` is set."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.num_made = 0
        self.go = asyncio.Event()

    async def make(self) -> Diagnosis:
        await self.go.wait()
        self.now_s += 2.0
        self.num_made += 1
        return Diagnosis(requests=self.num_made, window_s=0.0, groups=(), token_s=0.0)


async def test_those_who_ask_at_once_share_one_and_the_next_is_made_after_a_while() -> None:
    making = Making()
    latest = LatestDiagnosis(lambda: making.now_s)
    asked = [asyncio.ensure_future(latest.get(making.make)) for _ in range(20)]
    asked[0].cancel()  # whoever goes takes nothing from the others
    await asyncio.sleep(0)
    making.go.set()
    assert [each.requests for each in await asyncio.gather(*asked[1:])] == [1] * 19
    making.now_s += 17.9
    assert (await latest.get(making.make)).requests == 1
    making.now_s += 0.2
    assert (await latest.get(making.make)).requests == 2


async def test_where_the_next_one_takes_long_the_one_before_is_given_meanwhile() -> None:
    making = Making()
    making.go.set()
    latest = LatestDiagnosis(lambda: making.now_s, patience_s=0.01)
    assert (await latest.get(making.make)).requests == 1
    making.now_s += 100.0
    making.go.clear()
    assert (await latest.get(making.make)).requests == 1
    making.go.set()
    while (await latest.get(making.make)).requests == 1:
        await asyncio.sleep(0)
    assert making.num_made == 2


async def test_one_that_failed_is_made_anew() -> None:
    making = Making()
    making.go.set()
    latest = LatestDiagnosis(lambda: making.now_s)

    async def fail() -> Diagnosis:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await latest.get(fail)
    assert (await latest.get(making.make)).requests == 1
