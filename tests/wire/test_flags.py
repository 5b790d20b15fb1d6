import argparse
import dataclasses
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.config import FLAG_GROUPS
from wire.flags import add_flags, flag, from_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Kettle:
    """A class with a flag of every kind."""

    cups: int = flag(4, "How many cups.")
    celsius: float = flag(96.5, "How hot, up to 100%.")
    name: str = flag("kettle", "What to call it.")
    leaf: str = flag("green", "Which tea.", choices=("green", "black"))
    minutes: int | None = flag(None, "How long; auto asks the tea.")
    whistles: bool = flag(True, "Whether it whistles.")
    is_red: bool = flag(False, "Whether it is red.")
    secret: int = 7

    def __post_init__(self) -> None:
        if self.cups < 1:
            raise ValueError(f"--cups must be at least 1, got {self.cups}")


def parse(*arguments: str) -> Kettle:
    parser = argparse.ArgumentParser()
    add_flags(parser, Kettle, title="Kettle")
    kettle = from_flags(Kettle, parser.parse_args(arguments))
    assert isinstance(kettle, Kettle)
    return kettle


def test_without_flags_every_field_has_its_default() -> None:
    assert parse() == Kettle()


@given(
    cups=st.integers(1, 10**6),
    celsius=st.floats(allow_nan=False),
    leaf=st.sampled_from(("green", "black")),
    minutes=st.none() | st.integers(),
    whistles=st.booleans(),
    is_red=st.booleans(),
)
def test_what_is_given_arrives(
    cups: int, celsius: float, leaf: str, minutes: int | None, whistles: bool, is_red: bool
) -> None:
    arguments = [f"--cups={cups}", f"--celsius={celsius!r}", f"--leaf={leaf}"]
    arguments += [] if minutes is None else [f"--minutes={minutes}"]
    arguments += ["--whistles" if whistles else "--no-whistles", "--is-red" if is_red else "--no-is-red"]
    expected = Kettle(cups=cups, celsius=celsius, leaf=leaf, minutes=minutes, whistles=whistles, is_red=is_red)
    assert parse(*arguments) == expected


@pytest.mark.parametrize("arguments", [("--leaf", "mint"), ("--cups", "many"), ("--secret", "1")])
def test_what_a_flag_does_not_take_is_a_usage_error(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(*arguments)
    assert arguments[0] in capsys.readouterr().err


def test_the_class_s_own_check_is_a_value_error_that_names_the_flag() -> None:
    with pytest.raises(ValueError, match="--cups must be at least 1, got 0"):
        parse("--cups", "0")


def test_help_shows_defaults_and_survives_percent_signs() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, Kettle, title="Kettle")
    shown = " ".join(parser.format_help().split())
    assert "How hot, up to 100%. (default: 96.5)" in shown
    assert "How long; auto asks the tea. (default: auto)" in shown
    assert "[--whistles | --no-whistles] [--is-red]" in shown
    assert "--whistles, --no-whistles Whether it whistles. (default: on)" in shown
    assert "Whether it is red. (default: off)" in shown


def test_no_two_classes_of_the_server_share_a_flag() -> None:
    names = [field.name for _, _, cls in FLAG_GROUPS for field in dataclasses.fields(cls)]
    assert len(names) == len(set(names))
