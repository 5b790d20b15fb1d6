from __future__ import annotations

import pytest
import torch

from model_runner.device_sampler import DeviceSampler, sorting_filters
from model_runner.errors import FatalError
from model_runner.models.decoder import Decoder
from wire.messages.encoding import bytes_to_ids, ids_to_bytes
from wire.messages.to_runner import Admission, Chunk, PageCopy, StepPlan
from wire.sampling import SamplingParams

from .bed import GREEDY, Bed, Prompt, assert_same, greedy

PROMPT = [5, 9, 13, 17, 21, 25]


def _admission(row: int = 0, *, num_cached_tokens: int = 0, pages: tuple[int, ...] = (0, 1)) -> Admission:
    return Admission(
        row=row,
        request_id="request",
        sampling=GREEDY,
        num_cached_tokens=num_cached_tokens,
        page_ids=ids_to_bytes(pages),
    )


def _prefill(row: int = 0, *, token_ids: list[int] = PROMPT, page_ids: bytes = b"") -> Chunk:
    return Chunk(row=row, token_ids=ids_to_bytes(token_ids), is_sampled=True, page_ids=page_ids)


def _decode_with_page(page: int) -> StepPlan:
    row = ids_to_bytes([0])
    return StepPlan(step=0, decodes=row, grown_rows=row, grown_page_ids=ids_to_bytes([page]))


def test_a_row_may_be_released_and_given_to_another_request_in_one_plan(tiny: Decoder) -> None:
    bed = Bed(tiny)
    first = bed.execute(StepPlan(step=0, admissions=(_admission(),), chunks=(_prefill(),)))
    again = bed.execute(StepPlan(step=0, released=(0,), admissions=(_admission(pages=(7,)),), chunks=(_prefill(),)))
    assert first.token_ids == again.token_ids
    assert len(bytes_to_ids(first.token_ids)) == 1


def test_pages_that_come_with_a_step_extend_the_row(tiny: Decoder) -> None:
    bed = Bed(tiny, page_tokens=4)
    bed.execute(StepPlan(step=0, admissions=(_admission(pages=(3,)),)))
    plans = [StepPlan(step=0, chunks=(_prefill(page_ids=ids_to_bytes([9])),))]
    plans += [_decode_with_page(11 + i) for i in range(8)]
    token_ids = [bytes_to_ids(bed.execute(plan).token_ids)[0] for plan in plans]
    assert token_ids == Bed(tiny).generate([greedy(PROMPT)], 9)[0].token_ids


def test_a_chunk_that_is_not_sampled_gives_no_token(tiny: Decoder) -> None:
    chunk = Chunk(row=0, token_ids=ids_to_bytes([1, 2, 3]), is_sampled=False)
    result = Bed(tiny).execute(StepPlan(step=0, admissions=(_admission(),), chunks=(chunk,)))
    assert (result.token_ids, result.logprobs) == (b"", ())


def test_a_resumed_row_goes_on_with_its_own_random_numbers(tiny: Decoder) -> None:
    params = SamplingParams(seed=11, temperature=1.5)
    (whole,) = Bed(tiny).generate([Prompt(PROMPT, params)], 12)
    (resumed,) = Bed(tiny).generate([Prompt([*PROMPT, *whole.token_ids[:5]], params)], 7)
    assert resumed.token_ids == whole.token_ids[5:]


def test_sampled_text_does_not_depend_on_the_batch(tiny: Decoder) -> None:
    prompts = [Prompt([3 + i] * (4 + i), SamplingParams(seed=i, temperature=1.2, top_p=0.9)) for i in range(16)]
    together = Bed(tiny).generate(prompts, 12)
    assert len({tuple(output.token_ids) for output in together}) > 8
    for i in (0, 7, 15):
        assert Bed(tiny).generate(prompts[i : i + 1], 12)[0].token_ids == together[i].token_ids


@pytest.mark.parametrize("seed", [5, -1])
def test_a_seed_gives_the_same_text_alone_and_in_a_batch_of_32(tiny: Decoder, seed: int) -> None:
    wishes = [
        {"temperature": 1.2, "top_p": 0.9},
        {"repetition_penalty": 1.3, "top_k": 40},
        {"frequency_penalty": 0.4, "presence_penalty": 0.4, "min_p": 0.02},
        {"logit_bias": ((4, 2.0),), "min_new_tokens": 5, "stop_token_ids": (9,)},
    ]
    prompts = [Prompt([1 + i, 50, 60 - i] * (1 + i % 9), SamplingParams(seed=seed, **wishes[i % 4])) for i in range(32)]
    together = Bed(tiny).generate(prompts, 16)
    assert len({tuple(output.token_ids) for output in together}) == 32
    for i in range(8):
        (alone,) = Bed(tiny).generate([prompts[4 * i + i % 4]], 16, chunk_tokens=5)
        assert alone.token_ids == together[4 * i + i % 4].token_ids


def test_a_request_with_bad_logits_breaks_and_neither_its_neighbours_nor_its_pages_do(tiny: Decoder) -> None:
    poison = 198
    bed = Bed(tiny, num_pages=12)
    before = tiny.embedding[poison].clone()
    expected = Bed(tiny).generate([greedy(PROMPT)], 6)[0]
    tiny.embedding[poison] = float("nan")
    try:
        poisoned, healthy = bed.generate([greedy([poison, 1, 2]), greedy(PROMPT)], 6)
        assert poisoned.broken
        assert not healthy.broken
        assert_same(healthy, expected)
        bed.free_pages = [*poisoned.pages]
        assert_same(bed.generate([greedy(PROMPT)], 6)[0], expected)
    finally:
        tiny.embedding[poison] = before


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (StepPlan(step=0, released=(3,)), "row 3 is released but not live"),
        (StepPlan(step=0, chunks=(_prefill(5),)), r"runs rows \[5\], live are \[0\]"),
        (StepPlan(step=0, admissions=(_admission(0),)), "row 0 is admitted but already live"),
        (StepPlan(step=0, admissions=(_admission(1, num_cached_tokens=99),)), "too few pages"),
        (StepPlan(step=0, admissions=(_admission(1, pages=(999,)),)), "outside of the pool"),
        (StepPlan(step=0, copies=(PageCopy(source=0, destination=999),)), "outside of the pool"),
        (StepPlan(step=0, chunks=(_prefill(token_ids=[1] * 33),)), "lack pages"),
        (StepPlan(step=0, chunks=(_prefill(token_ids=[199]),)), "outside of the vocabulary"),
        (StepPlan(step=0, chunks=(_prefill(), _prefill())), "runs rows"),
        (StepPlan(step=0, chunks=(_prefill(token_ids=[]),)), "have nothing to run"),
        (StepPlan(step=0, decodes=ids_to_bytes([0]), chunks=(_prefill(),)), "runs rows"),
        (StepPlan(step=0, decodes=ids_to_bytes([4])), r"runs rows \[4\]"),
        (StepPlan(step=0, grown_rows=ids_to_bytes([4]), grown_page_ids=ids_to_bytes([1])), r"rows \[4\] get pages"),
        (StepPlan(step=0, grown_rows=ids_to_bytes([0]), grown_page_ids=ids_to_bytes([-1])), "outside of the pool"),
    ],
)
def test_a_plan_that_does_not_fit_the_rows_is_fatal(plan: StepPlan, sentence: str, tiny: Decoder) -> None:
    bed = Bed(tiny)
    bed.execute(StepPlan(step=0, admissions=(_admission(),)))
    with pytest.raises(FatalError, match=sentence):
        bed.execute(plan)


@pytest.mark.parametrize(
    "sampler", [None, DeviceSampler(torch.device("cpu"), sorting_filters())], ids=["host", "device"]
)
def test_a_step_may_be_launched_before_the_tokens_of_the_one_before_are_taken(
    sampler: DeviceSampler | None, tiny: Decoder
) -> None:
    wishes = [
        GREEDY,
        SamplingParams(seed=3, temperature=1.4, top_p=0.8),
        SamplingParams(seed=4, repetition_penalty=2.0),
    ]
    prompts = [Prompt([*PROMPT, i], params) for i, params in enumerate(wishes)]
    expected = Bed(tiny, device_sampler=sampler).generate(prompts, 10)
    bed = Bed(tiny, device_sampler=sampler)
    admissions = tuple(
        Admission(
            row=row,
            request_id=str(row),
            sampling=prompt.params,
            num_cached_tokens=0,
            page_ids=ids_to_bytes([2 * row, 2 * row + 1]),
            prompt_ids=ids_to_bytes(prompt.token_ids),
        )
        for row, prompt in enumerate(prompts)
    )
    chunks = tuple(_prefill(row, token_ids=list(prompt.token_ids)) for row, prompt in enumerate(prompts))
    running = bed.runner.launch(StepPlan(step=0, admissions=admissions, chunks=chunks))
    columns = []
    for step in range(1, 10):
        following = bed.runner.launch(StepPlan(step=step, decodes=ids_to_bytes(range(3))))
        columns.append(bytes_to_ids(running.result().token_ids))
        running = following
    columns.append(bytes_to_ids(running.result().token_ids))
    for row, output in enumerate(expected):
        assert [column[row] for column in columns] == output.token_ids


@pytest.mark.parametrize("step", [0, 2])
def test_a_repeated_or_skipped_step_is_fatal(step: int, tiny: Decoder) -> None:
    bed = Bed(tiny)
    bed.runner.execute(StepPlan(step=0))
    with pytest.raises(FatalError, match=f"step {step} came where step 1 was due"):
        bed.runner.execute(StepPlan(step=step))


def test_many_rows_and_long_page_tables_fit(tiny: Decoder) -> None:
    prompts = [greedy(torch.arange(1 + i, 80 + i).remainder(199).tolist()) for i in range(40)]
    outputs = Bed(tiny, num_pages=1000, page_tokens=4).generate(prompts, 3)
    assert_same(Bed(tiny, page_tokens=4).generate(prompts[37:38], 3)[0], outputs[37])
