from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench import linear
from model_runner.kernel_choice import load_library


def test_every_way_of_holding_weights_has_figures_beside_the_machines_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if load_library() is None:
        pytest.skip("no compiler, or a CPU that the kernels aren't written for")
    before = torch.get_num_threads()
    path = tmp_path / "figures.json"
    assert linear.main(["--shape", "64x64", "--threads", "1", "--repeats", "1", "--json", str(path)]) == 0
    torch.set_num_threads(before)
    figures = json.loads(path.read_text())["figures"]
    for name in ("float32", "bfloat16", "int8_32", "int4_32_a8", "torch_float32"):
        assert figures[f"{name}_m1_gb_per_s"] > 0
        assert figures[f"{name}_m512_fma_share"] > 0
    assert "512 tokens" in capsys.readouterr().out
