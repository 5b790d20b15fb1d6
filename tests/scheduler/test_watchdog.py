from __future__ import annotations

import pytest

from scheduler.settle import OutOfStep
from scheduler.watchdog import HEARTBEAT_PATIENCE_S, Watchdog

from .harness import make_harness


def test_the_rank_that_is_silent_is_named() -> None:
    state = make_harness().state
    watchdog = Watchdog([0.0, 0.0])
    watchdog.heard(0, now_s=HEARTBEAT_PATIENCE_S)
    assert watchdog.stuck(state, now_s=HEARTBEAT_PATIENCE_S) is None
    sentence = watchdog.stuck(state, now_s=HEARTBEAT_PATIENCE_S + 2)
    assert sentence == "rank 1 of the model runner has not been heard of for 12 s"
    assert Watchdog([0.0]).stuck(state, now_s=12) == "the model runner has not been heard of for 12 s"


def test_a_rank_that_misses_or_repeats_a_step_is_an_error() -> None:
    watchdog = Watchdog([0.0, 0.0, 0.0])
    watchdog.acknowledged(1, 0)
    watchdog.acknowledged(1, 1)
    watchdog.acknowledged(2, 0)
    for step in (0, 2):
        with pytest.raises(OutOfStep, match=f"rank 2 retired step {step} where step 1 was awaited"):
            watchdog.acknowledged(2, step)
