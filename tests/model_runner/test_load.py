from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from model_runner import implementation
from model_runner import load as loading
from model_runner.config import RunnerConfig, RunnerLaunch
from model_runner.errors import StartError
from model_runner.kv_pool import CPU
from model_runner.load import fingerprint, load, resolve_dtype

from .foreign import FAMILIES, save_foreign


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


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "--mem-fraction.*--cuda-graph-sizes"),
        (RuntimeError("CUDA error: out of memory"), "--mem-fraction.*--cuda-graph-sizes"),
        (RuntimeError("Ninja build failed.\nnorm.cu:3: fatal error: cublasLt.h"), r"cublasLt\.h.*--attention triton"),
        (OSError("[Errno 28] No space left on device"), "No space left.*FLASHINFER_WORKSPACE_BASE"),
    ],
)
def test_what_the_first_steps_on_a_gpu_fail_of_is_told_with_what_to_do(error: Exception, sentence: str) -> None:
    with pytest.raises(StartError, match=sentence), loading._explained(has_flashinfer=True):
        raise error


def test_where_flashinfer_has_no_part_what_fails_is_not_said_to_be_its() -> None:
    with pytest.raises(RuntimeError, match="device-side assert"), loading._explained(has_flashinfer=False):
        raise RuntimeError("CUDA error: device-side assert triggered")


@pytest.mark.parametrize(("words", "sizes"), [("none", ()), ("4, 16,2", (4, 16, 2))])
def test_the_numbers_of_rows_to_record_are_a_list(words: str, sizes: tuple[int, ...]) -> None:
    assert RunnerConfig(cuda_graph_sizes=words).graph_sizes() == sizes
    assert max(RunnerConfig().graph_sizes()) == 256


@pytest.mark.parametrize("words", ["", "0", "1,,2", "-4", "many"])
def test_what_is_no_list_of_numbers_of_rows_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=f"--cuda-graph-sizes must be .* got {words!r}"):
        RunnerConfig(cuda_graph_sizes=words)


def test_weights_that_do_not_fit_are_refused_before_they_are_read(
    launch: RunnerLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(implementation, "free_share", lambda device, ranks: 1000)
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


def test_auto_takes_bfloat16_where_the_cpu_multiplies_it_or_kernels_widen_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert resolve_dtype("auto", CPU, has_kernels=False) == torch.bfloat16
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert resolve_dtype("auto", CPU, has_kernels=False) == torch.float32
    assert resolve_dtype("auto", CPU, has_kernels=True) == torch.bfloat16
    assert resolve_dtype("bfloat16", CPU, has_kernels=False) == torch.bfloat16
    assert resolve_dtype("float32", CPU, has_kernels=True) == torch.float32
    with pytest.raises(StartError, match="--dtype float16 is for GPUs"):
        resolve_dtype("float16", CPU, has_kernels=True)


@pytest.fixture(scope="module")
def unknown(launch: RunnerLaunch, tmp_path_factory: pytest.TempPathFactory) -> RunnerLaunch:
    directory = tmp_path_factory.mktemp("unknown")
    save_foreign(FAMILIES["olmo2"], directory)
    return replace(launch, weights=str(directory), model_config=str(directory / "config.json"))


def _with(launch: RunnerLaunch, **changes: str) -> RunnerLaunch:
    return replace(launch, config=replace(launch.config, **changes))  # type: ignore[arg-type]


def test_a_family_of_ours_runs_in_our_code_and_another_one_in_that_of_transformers(
    launch: RunnerLaunch, unknown: RunnerLaunch, caplog: pytest.LogCaptureFixture
) -> None:
    assert _load(launch).facts["model_impl"] == "axil"
    with caplog.at_level(logging.INFO, "model_runner"):
        loaded = _load(unknown)
    assert loaded.facts["model_impl"] == f"transformers-{transformers.__version__}"
    assert "class=Olmo2ForCausalLM" in caplog.text
    assert (loaded.ready.vocabulary, loaded.ready.context_tokens, loaded.ready.device) == (199, 2048, "cpu")


def test_a_family_of_ours_can_run_in_transformers_code_and_its_kv_is_kept_apart(launch: RunnerLaunch) -> None:
    own, theirs = _load(launch), _load(_with(launch, model_impl="transformers"))
    assert str(theirs.facts["model_impl"]).startswith("transformers")
    assert own.ready.model_fingerprint != theirs.ready.model_fingerprint


@pytest.mark.parametrize("model_impl", ["auto", "axil"])
def test_an_unknown_architecture_that_transformers_can_not_give_either_is_named(
    model_impl: str, unknown: RunnerLaunch, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"architectures": ["StrangeForCausalLM"], "model_type": "strange"}')
    with pytest.raises(ValueError, match="unknown architecture StrangeForCausalLM; known ones are LlamaForCausalLM"):
        _load(_with(replace(unknown, model_config=str(config)), model_impl=model_impl))


def test_a_gguf_file_runs_in_our_code_only(launch: RunnerLaunch, unknown: RunnerLaunch, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    file = replace(unknown, weights=str(tmp_path / "model.gguf"))
    with pytest.raises(ValueError, match="unknown architecture Olmo2ForCausalLM"):
        _load(file)
    with pytest.raises(StartError, match="--model-impl transformers needs a directory"):
        _load(_with(replace(file, model_config=launch.model_config), model_impl="transformers"))


def test_without_the_package_transformers_an_unknown_family_says_what_to_install(
    unknown: RunnerLaunch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "model_runner.transformers_impl", None)
    with pytest.raises(StartError, match="pip install 'transformers>=5,<6'"):
        _load(unknown)
