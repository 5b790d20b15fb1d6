from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from model_runner.config import RunnerConfig, RunnerLaunch
from model_runner.errors import StartError
from model_runner.kernels.library import Library
from model_runner.ladder import Ceilings, Products, climb, measure_ceilings
from model_runner.load import load

from .conftest import save_tiny


@pytest.fixture
def launch(tmp_path: Path) -> RunnerLaunch:
    save_tiny("llama", tmp_path)
    return RunnerLaunch(
        run_dir="",
        weights=str(tmp_path),
        model_config=str(tmp_path / "config.json"),
        tokenizer=str(tmp_path / "tokenizer.json"),
        config=RunnerConfig(max_total_tokens=640, threads=1),
    )


def test_every_context_is_prefilled_once_and_decoded_in_every_batch(library: Library, launch: RunnerLaunch) -> None:
    loaded = load(launch, lambda done, total: None)
    ceilings = Ceilings(read_gb_s=10.0, multiply_gflop_s=100.0)
    rungs = list(climb(loaded, ceilings, contexts=(33, 64), batches=(1, 3), num_steps=3))
    prefills, decodes = (
        ["prefill 33", "prefill 64"],
        ["decode 33 x 1", "decode 33 x 3", "decode 64 x 1", "decode 64 x 3"],
    )
    assert [rung.name for rung in rungs] == [prefills[0], *decodes[:2], prefills[1], *decodes[2:]]
    assert all(rung.tok_s > 0 for rung in rungs)
    # Twice the KV takes longer to read, and the weights are read once for all rows.
    assert rungs[1].limit_tok_s > rungs[4].limit_tok_s
    assert rungs[1].limit_tok_s < rungs[2].limit_tok_s < 3 * rungs[1].limit_tok_s + 1


def test_a_batch_that_the_pool_does_not_hold_is_refused_with_what_would(library: Library, launch: RunnerLaunch) -> None:
    config = replace(launch.config, max_total_tokens=160)
    loaded = load(replace(launch, config=config), lambda done, total: None)
    with pytest.raises(StartError, match="--max-total-tokens"):
        list(climb(loaded, Ceilings(read_gb_s=1, multiply_gflop_s=1), contexts=(64,), batches=(8,), num_steps=2))


@pytest.mark.parametrize(
    ("dtype", "quantize", "products"),
    [
        ("float32", "none", Products.FLOAT32),
        ("bfloat16", "none", Products.BFLOAT16),
        ("bfloat16", "int8", Products.BYTES),
        ("bfloat16", "int4", Products.NIBBLES),
    ],
)
def test_a_prefill_is_held_against_the_products_that_its_weights_are_multiplied_in(
    library: Library, launch: RunnerLaunch, dtype: str, quantize: str, products: Products
) -> None:
    save_tiny("packable", Path(launch.weights))
    config = replace(launch.config, dtype=dtype, quantize=quantize)
    loaded = load(replace(launch, config=config), lambda done, total: None)

    def limit(rates: dict[Products, float]) -> float:
        ceilings = Ceilings(read_gb_s=1.0, multiply_gflop_s=rates.pop(Products.FLOAT32), kernels_gflop_s=rates)
        rung, _ = climb(loaded, ceilings, contexts=(32,), batches=(1,), num_steps=2)
        return rung.limit_tok_s

    same = dict.fromkeys(Products, 1.0)
    assert limit(same | {products: 2.0}) == pytest.approx(2 * limit(dict(same)))


def test_the_ceilings_are_those_of_some_machine(library: Library) -> None:
    ceilings = measure_ceilings(library)
    assert 0.05 < ceilings.read_gb_s < 10_000 and 0.1 < ceilings.multiply_gflop_s < 1_000_000
    assert ceilings.kernels_gflop_s.keys() == {Products.BFLOAT16, Products.BYTES, Products.NIBBLES}
    assert all(0.1 < rate < 1_000_000 for rate in ceilings.kernels_gflop_s.values())
