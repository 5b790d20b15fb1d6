from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_runner import flashinfer_build

FLAGS = ["--leave-out", "norm"]


class Spec:
    """Compiles at once."""

    def __init__(self, cache: Path, name: str) -> None:
        self.name = name
        self.jit_library_path = cache / f"{name}.so"

    def build(self, *, verbose: bool) -> None:
        self.jit_library_path.write_bytes(self.name.encode())


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "cuda"
    (home / "lib64").mkdir(parents=True)
    (home / "bin").mkdir()
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho Build cuda_13.0\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(os, "environ", os.environ | {"CUDA_HOME": str(home)})
    return home


@pytest.mark.usefixtures("toolkit")
def test_modules_are_laid_where_flashinfer_looks_for_them_and_the_manifest_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def specs(args: argparse.Namespace) -> Iterator[tuple[Spec, tuple[str, ...]]]:
        assert args.leave_out == ["norm"]
        for name in ("one", "two"):
            yield Spec(tmp_path, name), ()

    monkeypatch.setattr(flashinfer_build, "_specs", specs)
    out = tmp_path / "out"
    assert flashinfer_build.main([str(out), *FLAGS]) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["arch"], manifest["nvcc"]) == ("9.0a", "Build cuda_13.0")
    assert [one["name"] for one in manifest["modules"]] == ["one", "two"]
    for one in manifest["modules"]:
        data = (out / one["name"] / f"{one['name']}.so").read_bytes()
        assert (one["num_bytes"], one["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.usefixtures("toolkit")
def test_a_module_that_does_not_load_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_build, "_specs", lambda args: [(Spec(tmp_path, "broken"), ("plan",))])
    with pytest.raises(subprocess.CalledProcessError):
        flashinfer_build.main([str(tmp_path / "out")])


def test_without_a_toolkit_it_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert flashinfer_build.main([str(tmp_path / "out")]) == 1
    assert "set CUDA_HOME" in capsys.readouterr().err


def test_what_would_be_compiled_are_modules_that_flashinfer_can_make(tmp_path: Path) -> None:
    script = (
        "import argparse; from model_runner.flashinfer_build import _specs; args = argparse.Namespace("
        "dtype=['float16'], head_dim=[64, 256], window=True, softcap=False, leave_out=[]);"
        "print(*(spec.name for spec, functions in _specs(args)), sep='\\n')"
    )
    environment = os.environ | {"FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": str(tmp_path)}
    lines = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    names = lines.stdout.split()
    assert len(names) == len(set(names)) == 4 + 5
    assert sum("use_swa_True" in name for name in names) == 2


def test_what_would_be_compiled_for_attention_is_what_the_wrappers_load(tmp_path: Path) -> None:
    script = (
        "import argparse, torch, flashinfer; from flashinfer.jit.core import JitSpec;"
        "from model_runner.flashinfer_build import _specs;"
        "args = argparse.Namespace(dtype=['bfloat16'], head_dim=[128],"
        "window=True, softcap=False, leave_out=['rope', 'activation', 'norm', 'sampling']);"
        "print(*(spec.name for spec, functions in _specs(args)));"
        "JitSpec.build_and_load = lambda self: exit(print(self.name));"
        "flashinfer.prefill.get_batch_prefill_module("
        "'fa2', *3 * [torch.bfloat16], torch.int32, 128, 128, 0, True, False, False)"
    )
    environment = os.environ | {"FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": str(tmp_path)}
    lines = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    compiled, loaded = lines.stdout.splitlines()
    assert loaded in compiled.split()
