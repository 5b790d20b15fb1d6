from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model_runner import implementation
from model_runner import load as loading
from model_runner.config import RunnerConfig, RunnerLaunch
from model_runner.errors import StartError
from model_runner.load import fingerprint, load, resolve_dtype

from .conftest import save_tiny


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> RunnerLaunch:
    directory = tmp_path_factory.mktemp("model")
    save_tiny("llama", directory)
    return RunnerLaunch(
        run_dir="",
        weights=str(directory),
        model_config=str(directory / "config.json"),
        tokenizer=str(directory / "tokenizer.json"),
        config=RunnerConfig(dtype="float32", max_total_tokens=640, threads=1),
    )


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


def _load(launch: RunnerLaunch) -> loading.Loaded:
    return load(launch, lambda done, total: None)


def test_the_operator_is_told_what_was_reserved(launch: RunnerLaunch) -> None:
    facts = _load(launch).facts
    assert (facts["kv_pool_tokens"], facts["dtype"], facts["threads"]) == (640, "float32", 1)
    assert isinstance(facts["load_s"], float)


def test_the_context_is_the_models_unless_a_flag_shortens_it(launch: RunnerLaunch) -> None:
    assert _load(launch).ready.context_tokens == 2048
    shorter = replace(launch, config=RunnerConfig(dtype="float32", max_total_tokens=640, context_length=100))
    assert _load(shorter).ready.context_tokens == 100


@pytest.mark.parametrize(
    ("config", "flag"),
    [
        (RunnerConfig(context_length=4096), "--context-length"),
        (RunnerConfig(max_total_tokens=10**12), "--max-total-tokens"),
    ],
)
def test_a_flag_that_does_not_fit_the_model_or_the_machine_is_named(
    config: RunnerConfig, flag: str, launch: RunnerLaunch
) -> None:
    with pytest.raises(StartError, match=flag):
        _load(replace(launch, config=config))


def test_weights_that_do_not_fit_are_refused_before_they_are_read(
    launch: RunnerLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(implementation, "free_memory_bytes", lambda: 1000)
    with pytest.raises(StartError, match="--dtype bfloat16"):
        _load(launch)


@pytest.mark.parametrize(
    "change", [{"weights": "/nowhere/model.gguf"}, {"model_config": "/nowhere/config.json"}], ids=str
)
def test_a_path_that_is_not_there_is_named(change: dict[str, str], launch: RunnerLaunch) -> None:
    with pytest.raises(ValueError, match="/nowhere/"):
        _load(replace(launch, **change))


def test_the_fingerprint_changes_with_whatever_changes_the_kv(tmp_path: Path) -> None:
    config, weights = tmp_path / "config.json", tmp_path / "model.gguf"
    config.write_text("{}")
    weights.write_bytes(b"weights")
    seen = [fingerprint(config, [weights], "float32")]
    assert fingerprint(config, [weights], "float32") == seen[0]
    seen.append(fingerprint(config, [weights], "bfloat16"))
    os.utime(weights, ns=(1, 1))
    seen.append(fingerprint(config, [weights], "float32"))
    config.write_text("{ }")
    seen.append(fingerprint(config, [weights], "float32"))
    assert len(set(seen)) == len(seen)


def test_auto_takes_bfloat16_only_where_the_cpu_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert resolve_dtype("auto") == torch.bfloat16
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert resolve_dtype("auto") == torch.float32
    assert (resolve_dtype("bfloat16"), resolve_dtype("float32")) == (torch.bfloat16, torch.float32)
