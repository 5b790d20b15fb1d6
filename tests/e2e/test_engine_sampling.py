"""Every sampling parameter through an engine and its real processes, with the tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import axil
from tests.fakes import EOS, VOCABULARY, text_ids

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parent.parent.parent
PROMPT = "The keeper counted the ships. "


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[axil.Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # the processes import what the tests import
        with axil.Engine(tiny_model, max_total_tokens=4000, dtype="float32", threads=1) as engine:
            yield engine


def greedy(**fields: Any) -> axil.SamplingParams:  # noqa: ANN401 - any field
    return axil.SamplingParams(**{"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True, **fields})


def ids(engine: axil.Engine, **fields: Any) -> tuple[int, ...]:  # noqa: ANN401
    return engine.generate(PROMPT, greedy(**fields)).token_ids


def test_n_answers_are_grouped_by_prompt_and_the_first_is_that_of_a_single_one(engine: axil.Engine) -> None:
    sampling = greedy(temperature=1.0, seed=5)
    single = engine.generate([PROMPT, "Another"], sampling, progress=False)
    many = engine.generate([PROMPT, "Another"], sampling, n=3, progress=False)
    assert [len(samples) for samples in many] == [3, 3]
    assert [samples[0].token_ids for samples in many] == [answer.token_ids for answer in single]
    for samples in many:
        assert len({answer.token_ids for answer in samples}) == 3
    of_one = engine.generate(PROMPT, sampling, n=3)
    assert [answer.token_ids for answer in of_one] == [answer.token_ids for answer in many[0]]
    assert all(answer.cached_tokens == answer.prompt_tokens - 1 for answer in of_one)
    assert len(engine.generate(PROMPT, sampling, n=1)) == 1
    chat = engine.chat([{"role": "user", "content": "hi"}], sampling, n=2)
    assert len({answer.token_ids for answer in chat}) == 2


async def test_n_answers_come_without_blocking_too(engine: axil.Engine) -> None:
    sampling = greedy(temperature=1.0, seed=5)
    grouped = await engine.agenerate([PROMPT], sampling, n=2)
    assert grouped == engine.generate([PROMPT], sampling, n=2, progress=False)
    chat = await engine.achat([{"role": "user", "content": "hi"}], sampling, n=2)
    assert len(chat) == 2


def test_answers_without_a_seed_differ(engine: axil.Engine) -> None:
    assert len({answer.token_ids for answer in engine.generate(PROMPT, greedy(temperature=2.0), n=4)}) > 1


def test_each_penalty_changes_the_answer(engine: axil.Engine) -> None:
    plain = ids(engine, max_new_tokens=60)
    assert len(set(plain)) < 60
    for fields in ({"repetition_penalty": 2.0}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        assert ids(engine, max_new_tokens=60, **fields) != plain, fields


def test_a_bias_forces_a_token_and_forbids_another(engine: axil.Engine) -> None:
    assert ids(engine, logit_bias=((65, 100.0),)) == (65,) * 8
    assert ids(engine, logit_bias={65: 100.0}) == (65,) * 8
    plain = ids(engine)
    assert plain[0] not in ids(engine, logit_bias=[(plain[0], -100.0)])


def test_stop_ids_are_impossible_before_the_least_length(engine: axil.Engine) -> None:
    stop = {"logit_bias": ((65, 100.0),), "stop_token_ids": (65,)}
    first = engine.generate(PROMPT, greedy(**stop))
    assert (first.token_ids, first.finish_reason, first.matched) == ((65,), "stop", 65)
    later = ids(engine, **stop, min_new_tokens=3)
    assert (len(later), later.index(65)) == (4, 3)


def test_the_end_of_sequence_ends_an_answer_unless_it_is_ignored(engine: axil.Engine) -> None:
    forced = {"logit_bias": ((EOS, 100.0),)}
    ended = engine.generate(PROMPT, greedy(**forced, ignore_eos=False))
    assert (ended.completion_tokens, ended.finish_reason, ended.matched, ended.text) == (1, "stop", EOS, "")
    assert ids(engine, **forced) == (EOS,) * 8


def test_stop_strings_and_patterns_end_an_answer_and_are_told(engine: axil.Engine) -> None:
    forced = {"logit_bias": ((65, 100.0),)}
    for stop in (("AAA",), ["AAA"], "AAA"):
        stopped = engine.generate(PROMPT, greedy(**forced, stop=stop))
        assert (stopped.text, stopped.finish_reason, stopped.matched) == ("", "stop", "AAA")
    assert engine.generate(PROMPT, greedy(**forced, stop=("AAA",), no_stop_trim=True)).text == "AAA"
    matched = engine.generate(PROMPT, greedy(**forced, stop_regex=("A{4}",)))
    assert (matched.text, matched.matched) == ("AAAA", "A{4}")


def test_logprobs_of_answer_and_prompt_are_of_one_distribution(engine: axil.Engine) -> None:
    answer = engine.generate(PROMPT, greedy(num_top_logprobs=2, logprob_ids=(65, 66)))
    assert answer.logprobs is not None
    assert answer.prompt_logprobs is None
    assert [token.token_id for token in answer.logprobs] == list(answer.token_ids)
    assert [token.top[0] for token in answer.logprobs] == [(token.token_id, token.logprob) for token in answer.logprobs]
    assert all([token_id for token_id, _ in token.chosen] == [65, 66] for token in answer.logprobs)
    assert [token.text for token in answer.logprobs] == [engine.decode([token_id]) for token_id in answer.token_ids]
    prompt_ids = text_ids(PROMPT)
    scored = engine.generate(
        [*prompt_ids, *answer.token_ids],
        greedy(max_new_tokens=0, num_top_logprobs=2, logprob_ids=(65, 66), prompt_logprobs_from=len(prompt_ids)),
    )
    assert scored.logprobs == ()
    assert scored.prompt_logprobs is not None
    for one, other in zip(scored.prompt_logprobs, answer.logprobs, strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert one.chosen == [(token_id, pytest.approx(value, abs=1e-4)) for token_id, value in other.chosen]
    whole = engine.generate(PROMPT, greedy(prompt_logprobs_from=0))
    assert whole.prompt_logprobs is not None
    assert [token.token_id for token in whole.prompt_logprobs] == prompt_ids
    assert "".join(token.text or "" for token in whole.prompt_logprobs) == PROMPT == engine.decode(prompt_ids)
    assert whole.prompt_logprobs[0].logprob is None
    assert engine.generate(PROMPT, greedy(logprob_ids=(65,))).logprobs is not None
    assert engine.generate(PROMPT, greedy()).logprobs is None


def test_logprobs_of_a_prompt_are_those_of_transformers_computed_or_cached(
    engine: axil.Engine, tiny_model: Path
) -> None:
    reference = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    prompt_ids = text_ids("A prompt of its own, so that nothing of it is cached. " * 3)
    with torch.inference_mode():
        all_logprobs = reference(torch.tensor([prompt_ids])).logits[0].log_softmax(-1)
    wanted = [all_logprobs[i, token_id].item() for i, token_id in enumerate(prompt_ids[1:])]
    cached = []
    for token_ids in (prompt_ids, prompt_ids, [*prompt_ids, 65, 66]):
        answer = engine.generate(token_ids, greedy(prompt_logprobs_from=0))
        assert answer.prompt_logprobs is not None
        told = [token.logprob for token in answer.prompt_logprobs[1 : len(prompt_ids)]]
        assert told == [pytest.approx(value, abs=1e-3) for value in wanted]
        cached.append(answer.cached_tokens)
    assert cached == [0, len(prompt_ids) - 1, len(prompt_ids) - 1]


async def test_a_stream_takes_them_too(engine: axil.Engine) -> None:
    sampling = greedy(num_top_logprobs=1, prompt_logprobs_from=0, presence_penalty=1.5, logit_bias={65: 5.0})
    whole = engine.generate(PROMPT, sampling)
    chunks = [chunk async for chunk in engine.stream(PROMPT, sampling)]
    assert chunks[-1].completion is not None
    assert chunks[-1].completion.token_ids == whole.token_ids
    assert chunks[-1].completion.prompt_logprobs is not None
    assert len(chunks[-1].completion.prompt_logprobs) == whole.prompt_tokens


def test_a_salt_separates_caches(engine: axil.Engine) -> None:
    prompt = [7] * 40
    assert engine.generate(prompt, greedy(), salt="a").cached_tokens == 0
    assert engine.generate(prompt, greedy(), salt="b").cached_tokens == 0
    assert engine.generate(prompt, greedy(), salt="a").cached_tokens == 39


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"temperature": -1.0}, "temperature", "-1.0"),
        ({"temperature": "hot"}, "temperature", "float"),
        ({"max_new_tokens": 1.5}, "max_new_tokens", "int"),
        ({"top_k": True}, "top_k", "int"),
        ({"stop": 5}, "stop", "array"),
        ({"stop": ("a", 5)}, "stop", "str"),
        ({"stop": ("x" * 1025,)}, "stop", "1,024"),
        ({"stop_regex": "(a"}, "stop_regex", "RE2"),
        ({"logit_bias": {"65": 1.0}}, "logit_bias", "int"),
        ({"logit_bias": ((VOCABULARY, 1.0),)}, "logit_bias", str(VOCABULARY)),
        ({"num_top_logprobs": 21}, "num_top_logprobs", "20"),
        ({"prompt_logprobs_from": -1}, "prompt_logprobs_from", "-1"),
        ({"logprob_ids": (VOCABULARY,)}, "logprob_ids", str(VOCABULARY)),
        ({"frequency_penalty": 3.0}, "frequency_penalty", "[-2, 2]"),
        ({"min_new_tokens": 9}, "min_new_tokens", "[0, 8]"),
        ({"max_new_tokens": 10_000}, "max_new_tokens", "10000"),
    ],
)
def test_a_wrong_parameter_is_named_as_the_program_calls_it(
    engine: axil.Engine, fields: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(axil.AxilError) as caught:
        engine.generate([PROMPT, PROMPT], [greedy(), greedy(**fields)], progress=False)
    assert caught.value.field == field
    assert field in caught.value.message
    assert words in caught.value.message
    assert caught.value.__notes__ == ["in the prompt with index 1"]
    assert ids(engine)


@pytest.mark.parametrize("n", [0, 129, True, 1.0, "2"])
def test_a_wrong_number_of_answers_is_named(engine: axil.Engine, n: Any) -> None:  # noqa: ANN401
    with pytest.raises(axil.AxilError, match="n must be a whole number") as caught:
        engine.generate(PROMPT, greedy(), n=n)
    assert caught.value.field == "n"


def test_what_is_no_sampling_is_named(engine: axil.Engine) -> None:
    with pytest.raises(axil.AxilError, match="must be SamplingParams, got dict") as caught:
        engine.generate(PROMPT, {"temperature": 0})  # type: ignore[call-overload]
    assert caught.value.field == "sampling"
    with pytest.raises(axil.AxilError, match="salt must be a string"):
        engine.generate(PROMPT, greedy(), salt=5)  # type: ignore[call-overload]


def test_an_answer_that_goes_back_with_its_ids_is_cached_to_its_end(engine: axil.Engine) -> None:
    question: dict[str, object] = {"role": "user", "content": "What did he count?"}
    more: dict[str, object] = {"role": "user", "content": "And then?"}
    first = engine.chat([question], greedy(max_new_tokens=30))
    assert "\ufffd" in first.text, "its bytes must be no text, so that they are not what the text is tokenised to"
    said: dict[str, object] = {"role": "assistant", "content": first.text, "token_ids": first.token_ids}
    second = engine.chat([question, said, more], greedy())
    assert second.cached_tokens == first.prompt_tokens + first.completion_tokens - 1
    from_text = engine.chat([question, {**said, "token_ids": None}, more], greedy())
    assert from_text.cached_tokens < second.cached_tokens
    with pytest.raises(axil.AxilError, match="must be a list of integers") as caught:
        engine.chat([question, {**said, "token_ids": "x"}, more], greedy())
    assert caught.value.field == "messages[1].token_ids"
    with pytest.raises(axil.AxilError, match=str(VOCABULARY)):
        engine.chat([question, {**said, "token_ids": [VOCABULARY]}, more], greedy())
