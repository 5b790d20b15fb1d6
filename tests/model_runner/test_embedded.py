"""The embedded model against transformers, and the promise that a token depends on the tokens before it alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from model_runner.kernels.library import Library
from model_runner.models.decoder import Decoder

from .bed import Bed, Output, assert_same, greedy
from .conftest import load_embedded

NUM_PROMPTS = 20
NUM_TOKENS = 64


@pytest.fixture(scope="module")
def prompts(embedded: Decoder) -> list[list[int]]:
    """Pieces of 8 to 65 tokens of a text that the model wrote itself."""
    start = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
    (text,) = Bed(embedded).generate([greedy(start)], 90)
    return [[*start, *text.token_ids][2 * i : 5 * i + 8] for i in range(NUM_PROMPTS)]


@pytest.fixture(scope="module")
def long_prompt(prompts: list[list[int]]) -> list[int]:
    """300 tokens: two blocks of the attention's sums, the second one partly filled."""
    return [token_id for prompt in prompts for token_id in prompt][:300]


@pytest.fixture(scope="module")
def batch(embedded: Decoder, prompts: list[list[int]]) -> list[Output]:
    """All prompts, computed together."""
    return Bed(embedded).generate([greedy(prompt) for prompt in prompts], NUM_TOKENS)


@pytest.fixture(scope="module")
def whole(embedded: Decoder, long_prompt: list[int]) -> Output:
    """The long prompt, computed alone, cold and in one piece."""
    return Bed(embedded).generate([greedy(long_prompt)], 16)[0]


def test_greedy_tokens_equal_those_of_transformers(
    prompts: list[list[int]], batch: list[Output], reference: LlamaForCausalLM
) -> None:
    """By induction: the reference's best token behind every prefix of our text is our next token."""
    for prompt, output in zip(prompts, batch, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + output.token_ids[:-1]])).logits[0, len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == output.token_ids


def test_a_prompt_alone_gives_what_it_gives_in_a_batch(
    embedded: Decoder, prompts: list[list[int]], batch: list[Output]
) -> None:
    for i in (0, 11):
        (alone,) = Bed(embedded).generate([greedy(prompts[i])], 16)
        assert_same(alone, batch[i].first(16))


def test_a_long_prompt_among_others_gives_what_it_gives_alone(
    embedded: Decoder, long_prompt: list[int], prompts: list[list[int]], whole: Output
) -> None:
    others = [greedy(prompt) for prompt in prompts[:15]]
    assert_same(Bed(embedded).generate([*others, greedy(long_prompt)], 8)[-1], whole.first(8))


def test_a_prompt_in_chunks_gives_what_it_gives_in_one_piece(
    embedded: Decoder, long_prompt: list[int], whole: Output
) -> None:
    assert_same(Bed(embedded).generate([greedy(long_prompt)], 16, chunk_tokens=64)[0], whole)


def test_cached_pages_and_a_copied_page_give_what_computing_gives(
    embedded: Decoder, long_prompt: list[int], whole: Output
) -> None:
    bed = Bed(embedded)
    (cold,) = bed.generate([greedy(long_prompt)], 16)
    assert_same(cold, whole)
    (warm,) = bed.generate([greedy(long_prompt, pages=cold.pages[:18], num_cached_tokens=288)], 16)
    assert_same(warm, whole)
    fork = bed.free_pages.pop()
    bed.copy_page(cold.pages[18], fork)
    pages = (*cold.pages[:18], fork)
    (forked,) = bed.generate([greedy(long_prompt, pages=pages, num_cached_tokens=299)], 16)
    assert_same(forked, whole)


def test_computing_again_on_other_pages_gives_the_same(
    embedded: Decoder, long_prompt: list[int], whole: Output
) -> None:
    bed = Bed(embedded, num_pages=40)
    first = bed.generate([greedy(long_prompt[::-1])], 16)[0]
    bed.free_pages.extend(first.pages)
    assert_same(bed.generate([greedy(long_prompt)], 16)[0], whole)


@pytest.mark.parametrize("held", ["torch", "kernels", "the file's blocks"])
def test_logits_in_bfloat16_are_as_near_to_float32_as_those_of_transformers(
    embedded_path: Path, long_prompt: list[int], reference: LlamaForCausalLM, request: pytest.FixtureRequest, held: str
) -> None:
    plain = load_embedded(embedded_path, torch.bfloat16)
    library: Library | None = None if held == "torch" else request.getfixturevalue("library")
    keeps_blocks = held == "the file's blocks"
    model = load_embedded(embedded_path, torch.bfloat16, library=library, keeps_blocks=keeps_blocks)
    tokens = torch.tensor([long_prompt[:160]])
    with torch.inference_mode():
        exact = reference(tokens).logits[0]
        theirs = LlamaForCausalLM(reference.config).to(torch.bfloat16).eval()
        theirs.load_state_dict(dict(plain.parameters()), strict=False)
        theirs.tie_weights()
        their_distance = (theirs(tokens).logits[0].float() - exact).abs().mean()
        our_distance = (Bed(model, library=library).all_logits(tokens[0].tolist()) - exact).abs().mean()
    assert our_distance <= 1.1 * their_distance


def test_one_token_in_bfloat16_is_computed_as_among_many(embedded_path: Path) -> None:
    linear = load_embedded(embedded_path, torch.bfloat16).layers[0].down
    x = torch.randn(5, 1536, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    assert torch.equal(linear(x[:1]), linear(x)[:1])
