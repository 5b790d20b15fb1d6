"""`axil report` and `GET /report`."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import msgspec
import pytest

from runtime.report import lines, remedy, report
from tests.fakes import Server
from wire.gap import Gap, GapReport, GapWindow, Lost


def gap_of(**changes: float) -> Gap:
    lost = {"workload": 0.2, "capacity": 0.0, "policy": 0.0, "restart": 0.0} | {
        name: changes.pop(name) for name in [*changes] if name in ("workload", "capacity", "policy", "restart")
    }
    hit = 1 - sum(lost.values())
    sizes = {"lru_half": hit, "lru": hit, "lru_double": hit, "lru_quadruple": hit} | changes
    return Gap(
        requests=7, prompt_tokens=7000, hit=hit, ceiling=1 - lost["workload"], oracle=hit, lost=Lost(**lost), **sizes
    )


def report_of(gap: Gap, **namespaces: Gap) -> GapReport:
    window = GapWindow(seconds=None, all=gap, namespaces=namespaces)
    return GapReport(started_s=90.0, pool_tokens=1600, page_tokens=16, sampled_share=0.25, windows=(window,))


async def test_the_scheduler_is_asked_and_its_report_told(server: Server, http: aiohttp.ClientSession) -> None:
    server.scheduler.gap = report_of(gap_of())
    async with http.get("/report") as response:
        assert response.status == 200
        told = await response.json()
    assert told["windows"][0]["all"]["lost"] == {"workload": 0.2, "capacity": 0.0, "policy": 0.0, "restart": 0.0}
    server.scheduler.gap = None
    async with http.get("/report") as response:
        assert response.status == 400
        assert "--no-gap-report" in (await response.json())["error"]["message"]


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        (gap_of(capacity=0.3, lru_double=0.6, lru_quadruple=0.8), "twice as large would find 10.0 points more"),
        (gap_of(policy=0.3, lru_quadruple=0.8), "four times as large would find 30.0 points more"),
        (gap_of(policy=0.3), "--eviction"),
        (gap_of(restart=0.3, policy=0.1), "flush it less"),
        (gap_of(workload=0.9), "at their front"),
    ],
)
def test_the_largest_loss_that_can_be_mended_has_a_remedy(gap: Gap, words: str) -> None:
    assert words in (remedy(gap) or "")
    assert any(words in line for line in lines(report_of(gap)))


def test_no_remedy_is_told_where_nothing_is_lost_or_known() -> None:
    assert remedy(gap_of()) is None
    assert remedy(Gap(requests=0, prompt_tokens=0, hit=0.0)) is None


def test_namespaces_are_listed_where_there_are_several() -> None:
    text = "\n".join(lines(report_of(gap_of(), default=gap_of(), ab12=Gap(requests=1, prompt_tokens=9, hit=0.5))))
    assert (
        "namespace ab12: 1 request, 9 prompt tokens, found cached 50.0 %; too few of its pages were sampled to tell"
        in text
    )
    assert "1 page in 4 was followed" in text


def test_where_every_page_is_followed_a_namespace_without_one_filled_none() -> None:
    report = msgspec.structs.replace(
        report_of(gap_of(), default=gap_of(), ab12=Gap(requests=1, prompt_tokens=9, hit=0.5)), sampled_share=1
    )
    assert "found cached 50.0 %; its prompts filled no page to tell" in "\n".join(lines(report))


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must begin with http"):
        report("localhost:30000", api_key=None)
