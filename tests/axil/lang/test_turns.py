import asyncio

from axil.lang.turns import Turns
from tests.deadline import DEADLINE_S


async def test_a_turn_cancelled_before_its_task_runs_again_is_not_lost() -> None:
    turns = Turns(max_open=1)

    async def hold(released: asyncio.Event, key: str) -> None:
        async with turns.turn(key):
            await released.wait()

    released = asyncio.Event()
    first = asyncio.create_task(hold(released, "a"))
    waiting = asyncio.create_task(hold(released, "b"))
    while not turns.num_open:
        await asyncio.sleep(0)
    # In one turn of the loop: the holder leaves, which makes a turn due, and the one who waits is cancelled.
    asyncio.get_running_loop().call_soon(first.cancel)
    asyncio.get_running_loop().call_soon(waiting.cancel)
    asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, waiting.cancel)
    await asyncio.gather(first, waiting, return_exceptions=True)
    released.set()
    async with asyncio.timeout(DEADLINE_S):
        await hold(released, "c")
    assert turns.num_open == 0


async def test_turns_survive_cancels_at_every_moment() -> None:
    turns = Turns(max_open=2)

    async def short(key: str) -> None:
        async with turns.turn(key):
            await asyncio.sleep(0)

    for delay in range(6):
        tasks = [asyncio.create_task(short(f"{i}")) for i in range(9)]
        for _ in range(delay):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert turns.num_open == 0
