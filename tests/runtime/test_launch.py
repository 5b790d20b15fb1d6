import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import runtime.launch
from runtime.config import HttpConfig
from runtime.launch import (
    Hurried,
    Launch,
    Overdue,
    StartFailed,
    StopAsked,
    describe,
    stop_after_death,
    stop_in_order,
    wait_for_end,
    wait_until_started,
)
from runtime.part import Died, Part, Said
from tests.deadline import DEADLINE_S
from tests.processes import is_alive

ROOT = Path(__file__).parent.parent.parent
NAMES = ("tokenizer", "scheduler", "model_runner")

MakeLaunch = Callable[..., Launch]


class Lines(list[str]):
    """What the children wrote."""


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def make_launch(tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLaunch]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FAKE_RECORD", str(tmp_path / "record"))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    launches: list[Launch] = []

    def make(**behaviours: str) -> Launch:
        parts = [
            Part(
                name=name,
                module="tests.runtime.fake_child",
                config={"role": name, "behaviour": behaviours.get(name, "ok"), "run_dir": str(run_dir)},
            )
            for name in NAMES
        ]
        launch = Launch(parts, forward=lines.append)
        launches.append(launch)
        launch.start()
        return launch

    yield make
    for launch in launches:
        launch.kill()


def started(launch: Launch, *, within_s: float = 60) -> dict[str, int]:
    facts = wait_until_started(launch, within_s=within_s, on_said=lambda said: None)
    assert isinstance(facts, dict)
    return {name: int(facts[name]["pid"]) for name in facts}


def records(tmp_path: Path) -> list[str]:
    return (tmp_path / "record").read_text().splitlines()


def test_all_parts_start_and_their_facts_and_lines_arrive(make_launch: MakeLaunch, lines: Lines) -> None:
    said: list[Said] = []
    launch = make_launch()
    facts = wait_until_started(launch, within_s=60, on_said=said.append)
    assert isinstance(facts, dict)
    assert facts.keys() == set(NAMES)
    assert all(isinstance(facts[name]["pid"], int) for name in NAMES)
    assert {event.part for event in said} == set(NAMES)
    launch.kill()
    said = [line for name in NAMES for line in (f"{name} says hello", f"12:00:00 {name} INFO all is well")]
    assert sorted(lines) == sorted(said)


def test_a_stop_goes_to_the_front_first_and_to_the_others_when_it_has_gone(
    make_launch: MakeLaunch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime.launch, "_EXIT_S", DEADLINE_S)  # on a busy machine the usual may be over too soon
    launch = make_launch()
    started(launch)
    assert stop_in_order(launch, grace_s=DEADLINE_S) is None
    assert not launch.living
    assert records(tmp_path)[:2] == ["tokenizer Shutdown", "tokenizer exits"]
    assert sorted(records(tmp_path)[2:]) == sorted(
        f"{name} {does}" for name in ("scheduler", "model_runner") for does in ("Shutdown", "exits")
    )


def test_parts_that_ignore_a_stop_are_killed_when_the_grace_is_over(make_launch: MakeLaunch) -> None:
    launch = make_launch(tokenizer="deaf", model_runner="deaf")
    pids = started(launch)
    assert stop_in_order(launch, grace_s=0.1) == Overdue(parts=("tokenizer", "model_runner"))
    assert not any(map(psutil.pid_exists, pids.values()))


def test_a_stop_takes_less_than_five_seconds_unless_asked_to_wait_longer() -> None:
    assert HttpConfig().drain_seconds + runtime.launch._LEAVE_S + 2 * runtime.launch._EXIT_S < 5


def test_a_part_that_dies_while_open_requests_finish_ends_them_and_is_told(
    make_launch: MakeLaunch, tmp_path: Path
) -> None:
    launch = make_launch(tokenizer="busy")
    pids = started(launch)
    os.kill(pids["model_runner"], 9)
    before = time.monotonic()
    died = stop_in_order(launch, grace_s=DEADLINE_S)
    assert time.monotonic() - before < DEADLINE_S
    assert isinstance(died, Died)
    assert (died.part, died.exit_status) == ("model_runner", "killed by SIGKILL")
    assert records(tmp_path)[0] == "tokenizer Shutdown"
    assert "tokenizer PeerDied" in records(tmp_path)
    assert not launch.living


def test_the_front_s_own_death_while_open_requests_finish_is_no_ordered_end(make_launch: MakeLaunch) -> None:
    launch = make_launch(tokenizer="busy")
    pids = started(launch)
    os.kill(pids["tokenizer"], 9)
    died = stop_in_order(launch, grace_s=DEADLINE_S)
    assert isinstance(died, Died)
    assert (died.part, died.exit_status) == ("tokenizer", "killed by SIGKILL")
    assert not launch.living


@pytest.mark.parametrize("is_killed", [True, False])
def test_what_a_part_had_started_goes_with_it(make_launch: MakeLaunch, is_killed: bool) -> None:
    launch = make_launch(model_runner="parent")
    facts = wait_until_started(launch, within_s=60, on_said=lambda said: None)
    assert isinstance(facts, dict)
    compiler = int(facts["model_runner"]["child"])
    if is_killed:
        os.kill(int(facts["model_runner"]["pid"]), 9)
        wait_for_end(launch)
    else:
        launch.kill()
    deadline = time.monotonic() + DEADLINE_S
    while is_alive(compiler):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_part_that_ends_at_the_moment_it_is_killed_keeps_no_other_alive(
    make_launch: MakeLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = make_launch()
    pids = started(launch)
    really_kill = os.killpg

    def kill(group: int, number: int) -> None:
        really_kill(group, number)
        if group == pids["tokenizer"]:
            raise ProcessLookupError

    monkeypatch.setattr(os, "killpg", kill)
    launch.kill()
    assert not launch.living


def test_a_second_wish_to_stop_kills_at_once(make_launch: MakeLaunch) -> None:
    launch = make_launch(tokenizer="deaf")
    pids = started(launch)
    launch.ask_to_stop("again")
    before = time.monotonic()
    with pytest.raises(Hurried):
        stop_in_order(launch, grace_s=DEADLINE_S)
    assert time.monotonic() - before < DEADLINE_S
    assert not any(map(psutil.pid_exists, pids.values()))


def test_a_wish_to_stop_ends_the_start(make_launch: MakeLaunch) -> None:
    launch = make_launch(model_runner="hang")
    launch.ask_to_stop("SIGTERM")
    assert wait_until_started(launch, within_s=60, on_said=lambda said: None) == StopAsked(why="SIGTERM")
    launch.kill()
    assert not launch.living


def test_a_part_that_fails_ends_the_start_with_its_own_message(make_launch: MakeLaunch) -> None:
    launch = make_launch(tokenizer="fail", model_runner="hang")
    with pytest.raises(StartFailed, match=r"the tokenizer could not start: port 30000 is taken; .* --port"):
        started(launch)


def test_a_part_that_dies_at_the_start_is_named_with_exit_status_and_last_words(make_launch: MakeLaunch) -> None:
    launch = make_launch(scheduler="die", model_runner="hang")
    with pytest.raises(StartFailed, match=r"(?s)the scheduler died \(exit status 3\).*\| my last words"):
        started(launch)


def test_a_part_that_is_not_ready_in_time_is_named_with_what_it_was_doing(make_launch: MakeLaunch) -> None:
    launch = make_launch(model_runner="hang")
    with pytest.raises(StartFailed, match=r"after 2 s: .*the model_runner \(.*--start-timeout"):
        started(launch, within_s=2)


def test_a_status_that_is_none_ends_the_start(make_launch: MakeLaunch) -> None:
    launch = make_launch(model_runner="babble")
    with pytest.raises(StartFailed, match="the model_runner could not start: it sent a status that is none"):
        started(launch)


@pytest.mark.parametrize("victim", NAMES)
def test_when_one_part_is_killed_the_others_are_told_and_end(
    make_launch: MakeLaunch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    monkeypatch.setattr(runtime.launch, "GRACE_S", DEADLINE_S)
    launch = make_launch()
    pids = started(launch)
    os.kill(pids[victim], 9)
    died = wait_for_end(launch)
    assert isinstance(died, Died)
    assert (died.part, died.exit_status) == (victim, "killed by SIGKILL")
    assert died.last_words == f"{victim} says hello"
    stop_after_death(launch, died)
    assert not launch.living
    others = set(NAMES) - {victim}
    assert {line for line in records(tmp_path) if "PeerDied" in line} == {f"{name} PeerDied" for name in others}


def test_a_death_by_sigkill_is_described_with_the_flags_that_save_memory() -> None:
    text = describe(Died(part="model runner", exit_status="killed by SIGKILL", last_words="a\nb"))
    assert "the model runner died (killed by SIGKILL)" in text
    assert "--mem-fraction" in text
    assert "| a\n  | b" in text
