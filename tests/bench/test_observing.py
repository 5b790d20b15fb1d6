from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import observing
from bench.server import Server
from tests.bench.fake_openai import FakeOpenAI, running

FLAGS = Path(__file__).parents[2] / "docs/flags.md"


def test_both_servers_get_the_same_waves_and_one_is_watched_in_every_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fakes: dict[tuple[str, ...], FakeOpenAI] = {}

    @contextmanager
    def launched(flags: Sequence[str]) -> Iterator[Server]:
        fake = fakes[tuple(flags)] = FakeOpenAI(metrics=["# none\n"])
        with running(fake) as url:
            yield Server(url=url, ready_s=0.0, process_id=0)

    computed_s = itertools.count()
    monkeypatch.setattr(observing, "launched", launched)
    monkeypatch.setattr(observing, "cpu_s_of", lambda server: (float(next(computed_s)), 0.0, 0.0))
    path = tmp_path / "figures.json"
    assert observing.main(["--rows", "3", "--prompt-tokens", "40", "--repeats", "2", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())["figures"]
    assert figures["median_off_per_s"] > 0 and figures["median_on_per_s"] > 0
    assert (
        0
        < figures["at_least_on_over_off_percent"]
        <= figures["median_on_over_off_percent"]
        <= figures["at_most_on_over_off_percent"]
    )
    assert figures["median_off_cpu_ms"] == figures["median_on_cpu_ms"] == pytest.approx(1000 / 3)
    assert figures["median_added_cpu_percent"] == 0
    off, watched = fakes.values()
    assert sorted(off.prompts) == sorted(watched.prompts) and len(off.prompts) == 9
    assert off.num_scrapes == 0 and watched.num_scrapes >= 3, "each wave pays for its own reading"
    known = set(re.findall(r"`(--[a-z-]+)`", FLAGS.read_text()))
    given = {word for flags in fakes for word in flags if word.startswith("--")}
    assert given <= known and {"--record", "--kv-events", "--no-gap-report"} <= given
