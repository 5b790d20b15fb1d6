"""The deltas of several generations in one iteration, for those who wait for whole answers. Knows no HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from .generation import Delta, Generation


async def merged(generations: Sequence[Generation]) -> AsyncIterator[tuple[int, Delta]]:
    """The deltas of several generations as they come, each with its generation's index.

    Raises:
        AxilError: one of them failed.
    """
    if len(generations) == 1:
        async for delta in generations[0]:
            yield 0, delta
        return
    arrived: asyncio.Queue[tuple[int, Delta | Exception]] = asyncio.Queue()
    pumps = [asyncio.ensure_future(_pump(i, generation, arrived)) for i, generation in enumerate(generations)]
    try:
        num_left = len(pumps)
        while num_left:
            i, item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            num_left -= item.end is not None
            yield i, item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(i: int, generation: Generation, arrived: asyncio.Queue[tuple[int, Delta | Exception]]) -> None:
    try:
        async for delta in generation:
            arrived.put_nowait((i, delta))
    except Exception as error:
        arrived.put_nowait((i, error))
