"""Programs of many calls on the real model, in process and over HTTP."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import axil
from tests.e2e.server import Server
from tests.model_runner.conftest import as_transformers, find_embedded, load_embedded

pytestmark = pytest.mark.e2e

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def engine() -> Iterator[axil.Engine]:
    with axil.Engine(dtype="float32", threads=1, max_total_tokens=8000) as engine:
        yield engine


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_each_example_runs(engine: axil.Engine, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with axil.use_backend(engine):
        _loaded(path).main()
    assert capsys.readouterr().out.strip()


STORY = "Here is what the keeper of the lighthouse wrote into his book that night, word by word: the wind"


@axil.function
def branch(s: axil.State) -> list[str]:
    s += STORY
    branches = s.fork(3)
    branches += lambda i: (" north", " south", " west")[i] + axil.gen("rest", max_tokens=8, temperature=0.0)
    return branches["rest"]


def test_branches_give_the_text_of_separate_prompts_and_share_their_trunk(engine: axil.Engine) -> None:
    sampling = axil.SamplingParams(max_new_tokens=8, temperature=0.0)
    separate = [engine.generate(STORY + side, sampling).text for side in (" north", " south", " west")]
    result = branch.using(backend=engine).run()
    assert result.value == separate
    assert result.report.saved_share > 0.5


def test_branches_on_a_trunk_that_is_new_compute_it_once_to_the_token_with_the_text_of_cold_prompts(
    engine: axil.Engine,
) -> None:
    trunk = "Another story, which nobody has told before, begins at a lighthouse. The keeper looked to the"
    sides = (" north", " south", " west", " east")
    fresh = axil.SamplingParams(max_new_tokens=8, temperature=0.0)
    cold = [engine.generate(trunk + side, fresh, salt=side).text for side in sides]

    @axil.function
    def look(s: axil.State) -> list[str]:
        s += trunk
        branches = s.fork(len(sides))
        branches += lambda i: sides[i] + axil.gen("rest", max_tokens=8, temperature=0.0)
        return [str(text) for text in branches["rest"]]

    result = look.using(backend=engine).run()
    assert result.value == cold
    trunk_tokens = len(engine.encode(trunk))
    assert trunk_tokens % 16, "the trunk ends within a page"
    assert result.report.cached_tokens == (len(sides) - 1) * trunk_tokens


def test_a_server_gives_the_same_answers_as_an_engine(engine: axil.Engine, shared_server: Server) -> None:
    @axil.function
    def talk(s: axil.State) -> tuple[str, str, int]:
        s += axil.system("Be brief.")
        s += axil.user("Name a colour.")
        with s.assistant():
            s += "A colour is"
            s += axil.gen("colour", max_tokens=6, temperature=0.0)
        s += axil.user("Is that warm or cold?")
        with s.assistant():
            warmth = s.select("warmth", ["warm", "cold"])
            s += " because it has the number "
            number = s.gen("number", max_tokens=4, dtype=int, regex="[0-9]{1,3}", temperature=0.0)
        return str(s["colour"]), warmth.get(), number.get()

    with axil.Server(f"http://127.0.0.1:{shared_server.port}") as server:
        over_http = talk.using(backend=server, stream=True).run()
    in_process = talk.using(backend=engine).run()
    assert over_http.value == in_process.value
    assert over_http.meta("warmth").scores == pytest.approx(in_process.meta("warmth").scores, abs=1e-3)


PLACES = ("Paris", "Rome", "Oslo", "Cairo", "Lima", "Delhi", "Berlin", "Madrid", "Tokyo", "Athens")
KINDS = (" city", " fruit")


@axil.function
def classify(s: axil.State, question: str) -> str:
    s += question
    return s.select("kind", KINDS).get()


def test_a_dtype_holds_whatever_the_model_would_rather_say(engine: axil.Engine) -> None:
    @axil.function
    def count(s: axil.State) -> tuple[int, float, bool]:
        s += "Once upon a time, "
        told = s.gen("i", dtype=int), s.gen("f", dtype=float), s.gen("b", dtype=bool)
        return told[0].get(), told[1].get(), told[2].get()

    result = count.using(backend=engine, temperature=1.5, seed=1).run()
    assert tuple(map(type, result.value)) == (int, float, bool)
    assert result.report.generated_tokens < 60


def test_select_agrees_with_the_likelihoods_of_transformers_on_fifty_questions(engine: axil.Engine) -> None:
    reference = as_transformers(load_embedded(find_embedded(), torch.float32))
    asked = [f"{i}. {place} is a" for i in range(5) for place in PLACES]
    batch = classify.using(backend=engine).run_batch([{"question": question} for question in asked])
    prompts = [engine.encode(question + kind) for question in asked for kind in KINDS]
    # Padding behind a prompt changes nothing before it.
    padded = torch.tensor([ids + [0] * (max(map(len, prompts)) - len(ids)) for ids in prompts])
    with torch.inference_mode():
        logprobs_BTV = reference(padded).logits.log_softmax(-1)
    wanted = iter(logprobs_BTV[i, len(ids) - 2, ids[-1]].item() for i, ids in enumerate(prompts))
    for question, result in zip(asked, batch, strict=True):
        told = result.meta("kind").scores
        assert told is not None
        for kind in KINDS:
            assert len(engine.encode(question + kind)) == len(engine.encode(question)) + 1
            assert told[kind] == pytest.approx(next(wanted), abs=1e-3)
