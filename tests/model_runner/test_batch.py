"""A batch that is made of the last one is the batch that would be built anew."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_runner.batch import Batches, BatchPlan, build_batch
from model_runner.errors import FatalError
from model_runner.rows import RowTable
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission, Chunk, StepPlan
from wire.sampling import SamplingParams

PAGE_TOKENS, NUM_PAGES, VOCABULARY = 4, 4096, 50
Contents = dict[str, tuple[str, object]]
"""Types and values of a batch, by name."""
GREEDY = SamplingParams(max_new_tokens=9, temperature=0)


class Server:
    """A runner's table and batches, and plans for them as a scheduler would make them."""

    def __init__(self) -> None:
        self.table = RowTable(num_pages=NUM_PAGES, page_tokens=PAGE_TOKENS)
        self.batches = Batches(self.table, vocabulary=VOCABULARY)
        self._next_page = 0

    def admit(self, row: int, num_tokens: int) -> None:
        """A row with so many tokens cached."""
        pages = self._pages(-(-num_tokens // PAGE_TOKENS))
        self.table.admit(
            Admission(row=row, request_id=str(row), sampling=GREEDY, num_cached_tokens=num_tokens, page_ids=pages)
        )

    def step(self, decodes: list[int], chunk: tuple[int, int] | None = None) -> tuple[Contents, Contents]:
        """Give rows the pages they need, and store what the batch holds: what that is, and what it is built anew."""
        full = [row for row in decodes if self.table.lengths[row] == self.table.num_pages[row] * PAGE_TOKENS]
        self.table.append_page_each(ids_to_bytes(full), self._pages(len(full)))
        chunks: tuple[Chunk, ...] = ()
        if chunk is not None:
            row, num_tokens = chunk
            self.table.append_pages(row, self._pages(-(-num_tokens // PAGE_TOKENS)))
            chunks = (Chunk(row=row, token_ids=ids_to_bytes(range(num_tokens)), is_sampled=True),)
        plan = StepPlan(step=0, decodes=ids_to_bytes(decodes), chunks=chunks)
        expected = build_batch(self.table, plan, vocabulary=VOCABULARY)
        batch = self.batches.build(plan)
        self.table.lengths[batch.rows] = batch.kv_lens
        return contents(batch), contents(expected)

    def _pages(self, count: int) -> bytes:
        self._next_page += count
        return ids_to_bytes(range(self._next_page - count, self._next_page))


def contents(batch: BatchPlan) -> Contents:
    arrays = {field.name: np.asarray(getattr(batch, field.name)) for field in fields(BatchPlan)}
    return {name: (array.dtype.name, array.tolist()) for name, array in arrays.items()}


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(["decode", "fewer", "chunk", "replace"]), st.integers(1, 6)), max_size=30),
)
@example([1], [("decode", 1), ("replace", 1), ("decode", 1)])
def test_any_sequence_of_steps_has_the_batches_that_are_built_anew(
    lengths: list[int], actions: list[tuple[str, int]]
) -> None:
    server = Server()
    for row, length in enumerate(lengths):
        server.admit(row, length)
    rows = list(range(len(lengths)))
    for action, size in actions:
        steps: list[tuple[list[int], tuple[int, int] | None]] = []
        match action:
            case "decode":
                steps += size * [(rows, None)]
            case "fewer" if len(rows) > 1:
                steps = [(rows[size % len(rows) :], None)]
            case "chunk":
                steps = [(rows[1:], (rows[0], size))]
            case "replace":
                server.table.release(rows[0])
                server.admit(rows[0], size)
        for decodes, chunk in steps:
            own, anew = server.step(decodes, chunk)
            assert own == anew


def test_a_row_without_room_for_one_more_token_is_fatal_after_a_step_too() -> None:
    server = Server()
    server.admit(0, PAGE_TOKENS - 1)
    server.step([0])
    with pytest.raises(FatalError, match="lack pages"):
        server.batches.build(StepPlan(step=0, decodes=ids_to_bytes([0])))


def test_a_row_that_is_gone_is_fatal_after_a_step_too() -> None:
    server = Server()
    server.admit(0, 1)
    server.step([0])
    server.table.release(0)
    with pytest.raises(FatalError, match="live are"):
        server.batches.build(StepPlan(step=0, decodes=ids_to_bytes([0])))
