from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from model_runner.models.decoder import Decoder
from wire.messages.encoding import unpack_logprobs
from wire.sampling import SamplingParams

from .bed import TOLERANCE, Bed, Prompt
from .conftest import TINY_CONFIGS, load_directory, save_tiny

PROMPT = torch.randint(0, 199, (150,), generator=torch.Generator().manual_seed(3)).tolist()
CHOSEN = (5, 198, 0, 5)


def _expected(reference: PreTrainedModel, token_ids: list[int]) -> Tensor:
    """The logprobs of all tokens behind each one."""
    with torch.inference_mode():
        return reference(torch.tensor([token_ids])).logits[0].log_softmax(-1)


def _assert_entry(entry: bytes, expected_V: Tensor, token_id: int, num_top: int) -> None:
    own, pairs = unpack_logprobs(entry)
    top = expected_V.topk(num_top)
    assert [one for one, _ in pairs] == [*top.indices.tolist(), *CHOSEN]
    values = torch.tensor([own, *(value for _, value in pairs)])
    wanted = torch.cat((expected_V[[token_id]], top.values, expected_V[list(CHOSEN)]))
    assert (values - wanted).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_logprobs_of_a_prompt_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = save_tiny(name, tmp_path)
    params = SamplingParams(
        temperature=0.0,
        seed=0,
        num_top_logprobs=3,
        logprob_ids=CHOSEN,
        prompt_logprobs_from=0,
        repetition_penalty=1.5,
        logit_bias=((7, 50.0),),
    )
    (output,) = Bed(load_directory(tmp_path)).generate([Prompt(PROMPT, params)], 1)
    expected = _expected(reference, PROMPT)
    assert len(output.prompt_logprobs) == len(PROMPT) - 1
    for position, entry in enumerate(output.prompt_logprobs, start=1):
        _assert_entry(entry, expected[position - 1], PROMPT[position], 3)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 64, None])
@pytest.mark.parametrize("start", [1, 40, 149])
def test_logprobs_of_a_prompt_do_not_depend_on_its_chunks_or_the_batch(
    tiny: Decoder, chunk_tokens: int | None, start: int
) -> None:
    params = SamplingParams(temperature=0.0, seed=0, num_top_logprobs=0, prompt_logprobs_from=start)
    prompts = [Prompt(PROMPT[:30]), Prompt(PROMPT, params), Prompt(PROMPT[10:90], params)]
    outputs = Bed(tiny).generate(prompts, 2, chunk_tokens=chunk_tokens)
    expected = Bed(tiny).all_logits(PROMPT).log_softmax(-1)
    told = torch.tensor([unpack_logprobs(entry)[0] for entry in outputs[1].prompt_logprobs])
    wanted = torch.stack([expected[position - 1, PROMPT[position]] for position in range(start, len(PROMPT))])
    assert told.shape == wanted.shape
    assert (told - wanted).abs().max() <= TOLERANCE
    assert len(outputs[2].prompt_logprobs) == max(0, 80 - start)
    assert outputs[0].prompt_logprobs == []


def test_a_prompt_whose_logprobs_are_no_numbers_breaks(tiny: Decoder) -> None:
    poison = 198
    before = tiny.embedding[poison].clone()
    tiny.embedding[poison] = float("nan")
    params = SamplingParams(temperature=0.0, seed=0, num_top_logprobs=0, prompt_logprobs_from=0)
    try:
        (output,) = Bed(tiny).generate([Prompt([1, poison, 2, 3], params)], 1)
    finally:
        tiny.embedding[poison] = before
    assert output.broken


def test_the_logits_that_are_asked_for_do_not_depend_on_their_numbers(
    tiny: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several ranks compute them together, and only the first one sees the numbers.
    asked: list[int] = []
    compute = Decoder.logits
    monkeypatch.setattr(Decoder, "logits", lambda model, x: (asked.append(len(x)), compute(model, x) * factor)[1])
    params = SamplingParams(temperature=0.0, seed=0, num_top_logprobs=0, prompt_logprobs_from=0)
    seen = []
    for factor in (1.0, float("nan")):
        (output,) = Bed(tiny).generate([Prompt(PROMPT, params)], 1)
        assert output.broken == (factor != 1.0)
        seen.append(asked.copy())
        asked.clear()
    assert seen[0] == seen[1]
    assert len(seen[0]) > 2
