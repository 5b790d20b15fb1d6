from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from model_runner.kernels.library import Library
from model_runner.kernels.logit_rules import LogitKernels
from model_runner.logit_rules import LogitRules
from model_runner.models.decoder import Decoder
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission
from wire.sampling import SamplingParams

from .bed import Bed, Prompt
from .conftest import load_directory, save_tiny

VOCABULARY = 199
PROMPT = [7, 3, 150, 42, 42, 9, 198, 1, 77, 12, 5, 64, 101, 33]


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=["torch", "kernels"])
def kernels(request: pytest.FixtureRequest, library: Library) -> LogitKernels | None:
    """Both ways of applying rules."""
    return LogitKernels(library) if request.param == "kernels" else None


def _rules(kernels: LogitKernels | None, *rows: tuple[list[int], list[int], SamplingParams]) -> LogitRules:
    """Rules of rows 0, 1, … with a prompt and an output, of which the last token comes by `note`."""
    rules = LogitRules(vocabulary=VOCABULARY, kernels=kernels)
    for row, (prompt_ids, output_ids, sampling) in enumerate(rows):
        rules.admit(
            Admission(
                row=row,
                request_id=str(row),
                sampling=sampling,
                num_cached_tokens=0,
                page_ids=b"",
                num_prompt_tokens=len(prompt_ids),
                prompt_ids=ids_to_bytes(prompt_ids) if sampling.needs_prompt_ids else b"",
                output_ids=ids_to_bytes(output_ids[:-1]) if sampling.needs_output_ids else b"",
            )
        )
        rules.note([row], np.array(output_ids[-1:], np.int32)) if output_ids else None
    return rules


def _applied(
    kernels: LogitKernels | None,
    logits_V: torch.Tensor,
    prompt_ids: list[int],
    output_ids: list[int],
    **params: object,
) -> torch.Tensor:
    rules = _rules(kernels, (prompt_ids, output_ids, SamplingParams(**params)))
    positions = np.array([len(prompt_ids) + len(output_ids)], np.int64)
    return rules.applied(logits_V[None], [0], positions)[0]


@pytest.mark.parametrize("penalty", [1.3, 0.7, 2.0])
@pytest.mark.parametrize("output_ids", [[], [5], [150, 150, 8, 5]])
def test_the_repetition_penalty_is_that_of_transformers_bit_for_bit(
    kernels: LogitKernels | None, penalty: float, output_ids: list[int]
) -> None:
    logits = _random(VOCABULARY)
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.tensor([PROMPT + output_ids]), logits[None].clone())[0]
    assert torch.equal(_applied(kernels, logits, PROMPT, output_ids, repetition_penalty=penalty), expected)


def test_bias_and_least_length_are_those_of_transformers_bit_for_bit(kernels: LogitKernels | None) -> None:
    logits = _random(VOCABULARY)
    bias = {3: 2.5, 77: -100.0, 198: 0.1}
    processors = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor({(token_id,): value for token_id, value in bias.items()}),
            MinNewTokensLengthLogitsProcessor(len(PROMPT), 3, [5, 9]),
        ]
    )
    for output_ids in ([], [1, 2], [1, 2, 4]):
        expected = processors(torch.tensor([PROMPT + output_ids]), logits[None].clone())[0]
        params = {"logit_bias": tuple(bias.items()), "min_new_tokens": 3, "stop_token_ids": (5, 9, 5000)}
        assert torch.equal(_applied(kernels, logits, PROMPT, output_ids, **params), expected)


def test_frequency_and_presence_count_the_output_only(kernels: LogitKernels | None) -> None:
    logits = _random(VOCABULARY)
    output_ids = [150, 8, 150, 5, 150]
    expected = logits.clone()
    for token_id, count in Counter(output_ids).items():
        expected[token_id] -= torch.tensor(0.4) * count
        expected[token_id] -= torch.tensor(-1.1)
    applied = _applied(kernels, logits, PROMPT, output_ids, frequency_penalty=0.4, presence_penalty=-1.1)
    assert torch.equal(applied, expected)


def test_repetition_comes_before_the_penalties_that_subtract_and_the_bias_comes_last(
    kernels: LogitKernels | None,
) -> None:
    logits = torch.full((VOCABULARY,), 2.0)
    applied = _applied(
        kernels,
        logits,
        [1],
        [2],
        repetition_penalty=2.0,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        logit_bias=((1, 5.0), (2, 5.0)),
    )
    assert applied[:4].tolist() == [2.0, 6.0, 5.25, 2.0]


def test_a_row_gets_the_same_logits_alone_and_in_any_batch_and_the_given_ones_stay(
    kernels: LogitKernels | None,
) -> None:
    rows = [
        ([1, 2, 3], [4, 5], SamplingParams(repetition_penalty=1.2)),
        ([1, 2, 3], [4, 5], SamplingParams()),
        (PROMPT, [7] * 200, SamplingParams(frequency_penalty=0.3, presence_penalty=0.2)),
        ([9], [], SamplingParams(logit_bias=((9, 1.0),), repetition_penalty=1.7)),
        ([9], list(range(190)), SamplingParams(presence_penalty=0.9)),
        ([9], [8], SamplingParams(min_new_tokens=2, stop_token_ids=(4,))),
    ]
    positions = np.array([len(prompt) + len(output) for prompt, output, _ in rows], np.int64)
    logits = _random(len(rows), VOCABULARY)
    before = logits.clone()
    together = _rules(kernels, *rows).applied(logits, range(len(rows)), positions)
    assert torch.equal(logits, before)
    assert torch.equal(together[1], logits[1])
    for b, row in enumerate(rows):
        alone = _rules(kernels, row).applied(logits[b : b + 1], [0], positions[b : b + 1])
        assert torch.equal(alone[0], together[b])


def test_rows_without_rules_are_not_even_copied_and_a_released_row_leaves_none(kernels: LogitKernels | None) -> None:
    logits = _random(1, VOCABULARY)
    rules = _rules(kernels, (PROMPT, [1], SamplingParams(logit_bias=((1, 1.0),))))
    position = np.array([20], np.int64)
    assert rules.applied(logits, [0], position) is not logits
    assert rules.applied(logits, [1], position) is logits
    rules.release(0)
    assert rules.applied(logits, [0], position) is logits


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_greedy_tokens_with_a_repetition_penalty_equal_those_of_transformers(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp(name)
    reference = save_tiny(name, directory)
    params = SamplingParams(temperature=0.0, seed=0, repetition_penalty=1.4)
    (output,) = Bed(load_directory(directory)).generate([Prompt(PROMPT, params)], 24)
    expected = reference.generate(
        torch.tensor([PROMPT]),
        max_new_tokens=24,
        do_sample=False,
        repetition_penalty=1.4,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert output.token_ids == expected[0, len(PROMPT) :].tolist()
    plain = reference.generate(
        torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert not torch.equal(plain, expected), "the penalty changed nothing"


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, seed=0, repetition_penalty=1.3),
        SamplingParams(temperature=0.8, seed=3, frequency_penalty=0.7),
        SamplingParams(temperature=0.8, seed=3, presence_penalty=1.5, min_new_tokens=9, stop_token_ids=(4, 90)),
    ],
    ids=str,
)
def test_penalties_survive_a_retraction(tiny: Decoder, params: SamplingParams) -> None:
    (whole,) = Bed(tiny).generate([Prompt(PROMPT, params)], 16)
    begun = [*PROMPT, *whole.token_ids[:6]]
    (resumed,) = Bed(tiny).generate([Prompt(begun, params, num_output_tokens=6)], 10)
    assert resumed.token_ids == whole.token_ids[6:]


def test_a_stop_token_never_comes_before_the_least_length(tiny: Decoder) -> None:
    wish = {"temperature": 0.0, "seed": 0, "logit_bias": ((4, 100.0),)}
    (always,) = Bed(tiny).generate([Prompt(PROMPT, SamplingParams(**wish))], 6)
    assert always.token_ids == [4] * 6
    params = SamplingParams(**wish, min_new_tokens=3, stop_token_ids=(4,))
    (output,) = Bed(tiny).generate([Prompt(PROMPT, params)], 6)
    assert 4 not in output.token_ids[:3]
    assert output.token_ids[3:] == [4, 4, 4]


def test_logprobs_stay_those_of_the_raw_logits(tiny: Decoder) -> None:
    params = SamplingParams(temperature=0.0, seed=0, logit_bias=((4, 100.0),), num_top_logprobs=0)
    bed = Bed(tiny)
    (output,) = bed.generate([Prompt(PROMPT, params)], 1)
    expected = bed.all_logits(PROMPT)[-1].log_softmax(-1)[4].item()
    assert output.logprobs == [pytest.approx(expected, abs=1e-5)]
