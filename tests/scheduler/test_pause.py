"""A pause: nothing is begun, nothing is lost, and afterwards all goes on as if there had been none."""

from __future__ import annotations

from scheduler.leave import fail_stalled

from .harness import Harness, make_harness

PROMPTS = {"a": [1, 2, 3, 4, 5], "b": [1, 2, 3, 9]}


def _ended(*, pauses_after: int | None) -> Harness:
    harness = make_harness()
    for name, prompt in PROMPTS.items():
        harness.submit(name, prompt, max_new_tokens=6)
    if pauses_after is not None:
        for _ in range(pauses_after):
            harness.send_plan()
            harness.retire()
        harness.state.is_paused = True
        while harness.sent:
            harness.retire()  # steps that were begun before it end
        assert harness.send_plan() is None
        harness.state.is_paused = False
    harness.run()
    harness.check()
    return harness


def test_answers_are_the_same_with_and_without_a_pause() -> None:
    plain = _ended(pauses_after=None)
    for num_steps in (0, 1, 3):
        paused = _ended(pauses_after=num_steps)
        assert paused.outputs == plain.outputs
        assert {name: done.reason for name, done in paused.terminal.items()} == dict.fromkeys(PROMPTS, "length")


def test_who_comes_during_a_pause_waits_and_is_not_failed() -> None:
    harness = make_harness()
    harness.state.is_paused = True
    harness.submit("late", [1, 2, 3])
    assert harness.send_plan() is None
    harness.take(fail_stalled(harness.state))
    assert harness.waiting_ids() == {"late"}
    harness.state.is_paused = False
    harness.run()
    assert len(harness.outputs["late"]) == 4
