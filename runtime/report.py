"""`axil report`: the gap report of a running server, in lines for people."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec

from wire.gap import Gap, GapReport, GapWindow, Lost

from .remote import ServerFailed, base_url_of, get_json, session_with

_LEAST_GAIN = 0.01
"""A share of all prompt tokens that is worth a remedy."""


def report(url: str, *, api_key: str | None) -> int:
    """Print the report of the server at `url`; returns the exit status.

    Raises:
        ServerFailed: it can't be reached, or keeps none.
        ValueError: `url` is none.
    """
    base_url = base_url_of(url)
    told = asyncio.run(_fetch(base_url, api_key))
    try:
        print("\n".join(lines(msgspec.convert(told, GapReport))))
    except msgspec.ValidationError as error:
        raise ServerFailed(f"{base_url}/report is of another version of axil: {error}") from error
    return 0


def lines(report: GapReport) -> Iterator[str]:
    """The report, window by window; namespaces where there is more than one.

    >>> lost = Lost(workload=0.3, capacity=0.05, policy=0.05, restart=0.0)
    >>> gap = Gap(
    ...     requests=4, prompt_tokens=4000, hit=0.6, ceiling=0.7, oracle=0.65, lru=0.6, lru_half=0.3, lru_double=0.7,
    ...     lru_quadruple=0.7, lost=lost,
    ... )
    >>> window = GapWindow(seconds=600, all=gap, namespaces={"default": gap})
    >>> print("\\n".join(lines(GapReport(
    ...     started_s=7300, pool_tokens=3200, page_tokens=16, sampled_share=1, windows=(window,)
    ... ))))
    a pool of 3,200 tokens in pages of 16; every page was followed
    this server started 2 h ago; what was cached before a restart is not known, and counts as never seen
    <BLANKLINE>
    last 10 minutes: 4 requests, 4,000 prompt tokens
      found cached   60.0 %
      lost to
        workload     30.0 %  never seen before, or in a page that the prompt doesn't fill
        capacity      5.0 %  more was in use than the pool holds, whatever is evicted
        policy        5.0 %  evicted though it came back, or still being computed when it was asked for
        restart       0.0 %  the cache was flushed since the start
      least recently used pages evicted, a pool of half, this, twice, four times the size finds
                     30.0 %   60.0 %   70.0 %   70.0 %
      remedy: a pool twice as large would find 10.0 points more: raise --mem-fraction or --max-total-tokens.
    """
    share = report.sampled_share
    followed = "every page was followed" if share == 1 else f"1 page in {1 / share:.0f} was followed"
    yield f"a pool of {report.pool_tokens:,} tokens in pages of {report.page_tokens}; {followed}"
    yield (
        f"this server started {_duration(report.started_s)} ago; what was cached before a restart is not known, "
        "and counts as never seen"
    )
    shown = None
    for window in report.windows:
        yield ""
        if shown is not None and window.all.requests == shown.requests:
            yield f"{_span(window)}: the same"
            continue
        shown = window.all
        yield f"{_span(window)}: {_size(window.all)}"
        yield from _body(window.all)
        if len(window.namespaces) > 1:
            unknown = "too few of its pages were sampled" if share < 1 else "its prompts filled no page"
            for name, gap in window.namespaces.items():
                lost = f"{unknown} to tell what is lost" if gap.lost is None else _lost_briefly(gap.lost)
                yield f"  namespace {name}: {_size(gap)}, found cached {_percent(gap.hit)}; {lost}"


def remedy(gap: Gap) -> str | None:
    """What to do about the largest loss that can be mended; None when there is hardly one."""
    lost = gap.lost
    if lost is None or gap.lru is None or gap.lru_double is None or gap.lru_quadruple is None:
        return None
    larger = "raise --mem-fraction or --max-total-tokens."
    double, quadruple = gap.lru_double - gap.lru, gap.lru_quadruple - gap.lru
    if lost.restart >= max(_LEAST_GAIN, lost.capacity, lost.policy):
        return "the cache was flushed while it was in use: flush it less often."
    if max(lost.capacity, lost.policy) >= _LEAST_GAIN:
        if double >= _LEAST_GAIN:
            return f"a pool twice as large would find {100 * double:.1f} points more: {larger}"
        if quadruple >= _LEAST_GAIN:
            return f"a pool four times as large would find {100 * quadruple:.1f} points more: {larger}"
        if lost.policy >= lost.capacity:
            return "requests ask for what is still being computed, or evicted too soon: try another --eviction."
    if lost.workload >= 0.5:
        return "most prompts are new: axil doctor looks for what changes at their front."
    return None


def _body(gap: Gap) -> Iterator[str]:
    yield f"  found cached {_percent(gap.hit):>8}"
    if gap.lost is None or gap.lru_half is None:
        yield "  nothing to compare with yet: no prompt filled a page that was followed; ask after more requests"
        return
    yield "  lost to"
    for owner, text in (
        ("workload", "never seen before, or in a page that the prompt doesn't fill"),
        ("capacity", "more was in use than the pool holds, whatever is evicted"),
        ("policy", "evicted though it came back, or still being computed when it was asked for"),
        ("restart", "the cache was flushed since the start"),
    ):
        yield f"    {owner:<11}{_percent(getattr(gap.lost, owner)):>8}  {text}"
    yield "  least recently used pages evicted, a pool of half, this, twice, four times the size finds"
    sizes = (gap.lru_half, gap.lru, gap.lru_double, gap.lru_quadruple)
    yield " " * 15 + " ".join(f"{_percent(share):>8}" for share in sizes if share is not None)
    if (advice := remedy(gap)) is not None:
        yield f"  remedy: {advice}"


def _lost_briefly(lost: Lost) -> str:
    parts = [f"{owner} {_percent(getattr(lost, owner))}" for owner in ("workload", "capacity", "policy", "restart")]
    return "lost to " + ", ".join(parts)


def _span(window: GapWindow) -> str:
    if window.seconds is None:
        return "since the start"
    return "last hour" if window.seconds == 3600 else f"last {window.seconds // 60} minutes"


def _duration(seconds: float) -> str:
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _size(gap: Gap) -> str:
    return f"{gap.requests:,} request{'s' * (gap.requests != 1)}, {gap.prompt_tokens:,} prompt tokens"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


async def _fetch(base_url: str, api_key: str | None) -> object:
    async with session_with(api_key) as session:
        return await get_json(session, f"{base_url}/report")
