import logging
import os
import re
import subprocess
import sys

from wire.log import level_of

CODE = (
    "import logging; from wire.log import configure; configure('kettle');"
    "[logging.getLogger('tea').log(level, 'cups=%d', 4) for level in (10, 20, 40)];"
    "logging.getLogger('aiohttp.access').info('GET /')"
)


def lines(**environment: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout == ""
    return result.stderr.splitlines()


def test_a_line_has_time_process_level_and_message_and_goes_to_standard_error() -> None:
    info, error = lines(AXIL_LOG="INFO")
    assert re.fullmatch(r"\d\d:\d\d:\d\d kettle    INFO    cups=4", info)
    assert re.fullmatch(r"\d\d:\d\d:\d\d kettle    ERROR   cups=4", error)
    assert (level_of(info), level_of(error)) == (logging.INFO, logging.ERROR)
    assert level_of("KeyError: 7") is None and level_of("some words of another program") is None


def test_the_level_comes_from_the_environment() -> None:
    assert len(lines(AXIL_LOG="ERROR")) == 1
    assert len(lines(AXIL_LOG="debug")) == 3


def test_a_level_that_is_none_is_refused_by_name() -> None:
    assert "AXIL_LOG=LOUD is no log level" in lines(AXIL_LOG="loud")[-1]
