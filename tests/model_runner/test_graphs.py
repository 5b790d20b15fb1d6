"""Recorded decode steps on the CPU: a recording is what was recorded, run again on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from model_runner.attention.backend import AttentionSpec
from model_runner.attention.flashinfer_backend import FlashInferAttention
from model_runner.models.decoder import Decoder

from .bed import Bed, Output, assert_same, greedy
from .reference_kernels import reference_kernels

SIZES = (1, 2, 4, 8)
PROMPTS = [[5, 9, 13], [7] * 15, [1, 2, 3, 4] * 4, [11] * 17, [3], [8, 6] * 20, [2, 4], [9] * 31, [1, 5, 9, 2]]


class Again:
    """Runs the work again; what it wrote last is spoilt before, so that nothing of an earlier run can pass for it."""

    def __init__(self) -> None:
        self.num_captured = 0
        self.replayed: list[int] = []

    def __call__(self, work: Callable[[], None]) -> _Recording:
        work()
        self.num_captured += 1
        return _Recording(self, sorted(SIZES, reverse=True)[self.num_captured - 1], work)


class _Recording:
    def __init__(self, owner: Again, size: int, work: Callable[[], None]) -> None:
        self._owner, self._size, self._work = owner, size, work

    def replay(self) -> None:
        self._owner.replayed.append(self._size)
        self._work()


@pytest.fixture(autouse=True)
def _kernels() -> Iterator[None]:
    with reference_kernels(is_recorded=False):
        yield


def _flashinfer(spec: AttentionSpec) -> FlashInferAttention:
    return FlashInferAttention(spec, torch.device("cpu"), max_graph_rows=SIZES[-1])


def _recorded(model: Decoder, *, page_tokens: int = 16) -> tuple[Bed, Again]:
    again = Again()
    bed = Bed(model, page_tokens=page_tokens, new_backend=_flashinfer, graph_sizes=SIZES, capture=again)
    return bed, again


def _generate(bed: Bed, prompts: Sequence[Sequence[int]], num_tokens: int = 12) -> list[Output]:
    return bed.generate([greedy(prompt) for prompt in prompts], num_tokens)


@pytest.mark.parametrize("page_tokens", [1, 16])
@pytest.mark.parametrize("num_rows", [1, 3, 8])
def test_a_replayed_step_gives_what_the_step_itself_gives(num_rows: int, page_tokens: int, tiny: Decoder) -> None:
    bed, again = _recorded(tiny, page_tokens=page_tokens)
    for one, other in zip(_generate(bed, PROMPTS[:num_rows]), _generate(Bed(tiny), PROMPTS[:num_rows]), strict=True):
        assert_same(one, other)
    assert set(again.replayed) == {min(size for size in SIZES if size >= num_rows)}


def test_the_largest_is_recorded_first_and_a_step_with_more_rows_is_not_replayed(tiny: Decoder) -> None:
    bed, again = _recorded(tiny)
    assert again.num_captured == len(SIZES)
    for one, other in zip(_generate(bed, PROMPTS), _generate(Bed(tiny), PROMPTS), strict=True):
        assert_same(one, other)
    assert again.replayed == []


def test_a_step_that_prefills_besides_is_not_replayed(tiny: Decoder) -> None:
    bed, again = _recorded(tiny)
    prompts = [greedy([7, 8]), greedy([5] * 40)]
    outputs = bed.generate(prompts, 6, chunk_tokens=10)
    for one, other in zip(outputs, Bed(tiny).generate(prompts, 6, chunk_tokens=10), strict=True):
        assert_same(one, other)
    assert len(again.replayed) == 5, "of the long prompt's row, once it decodes"


def test_rows_that_fill_up_a_size_touch_no_page_of_anybody(tiny: Decoder) -> None:
    bed, again = _recorded(tiny)
    for pages in bed.pool.layers:
        pages[: bed.pool.num_pages] = float("nan")
    outputs = _generate(bed, PROMPTS[:3])
    assert set(again.replayed) == {4}
    given = {page for output in outputs for page in output.pages}
    others = torch.tensor([page for page in range(bed.pool.num_pages) if page not in given])
    assert all(pages[others].isnan().all() for pages in bed.pool.layers)


def test_rows_come_and_go_between_replays(tiny: Decoder) -> None:
    bed, _ = _recorded(tiny)
    for num_rows in (8, 2, 5, 1, 3):
        prompts = PROMPTS[-num_rows:]
        for one, other in zip(_generate(bed, prompts, 4), _generate(Bed(tiny), prompts, 4), strict=True):
            assert_same(one, other)
