"""The GPU's report on a machine without one: a device that only answers, and a tiny model's steps on the CPU."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pytest
import torch

from bench import gpu
from bench.command import CannotMeasure, exit_status
from bench.gpu_limits import ceilings, sheet_of, timed_ms
from bench.gpu_servers import COMMANDS, OUTPUT_TOKENS, measured, names, serving
from bench.gpu_steps import Figure, Job, run
from bench.summary import Answer
from tests.e2e.tiny_model import write_tiny_model

NOW = datetime(2026, 11, 30, tzinfo=UTC)


class FakeDevice:
    """4000 GB/s, 800 TFLOP/s."""

    name = "NVIDIA H200"

    def read_gb_s(self) -> float:
        return 4000.0

    def multiply_tflop_s(self) -> float:
        return 800.0


def _job(model: Path, **changes: object) -> Job:
    flags = {"device": "cpu", "dtype": "float32", "max_total_tokens": 2000, "threads": 1}
    limits = ceilings(FakeDevice())
    job = {
        "model": str(model),
        "flags": flags,
        "contexts": [32],
        "batches": [1, 2, 4000],
        "num_steps": 3,
        "read_gb_s": limits.read_gb_s,
        "multiply_gflop_s": limits.multiply_gflop_s,
    }
    return Job(**job | changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def test_without_a_gpu_it_says_so_and_ends_with_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert exit_status(lambda: gpu.main([])) == 2
    assert "sees no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("is_ahead", [False, True])
def test_steps_have_figures_beside_their_limits_and_what_does_not_fit_is_left_out(model: Path, is_ahead: bool) -> None:
    figures = run(_job(model, is_ahead=is_ahead, has_sdpa=True))
    assert [figure.name for figure in figures] == [
        "prefill 32",
        "decode 32 x 1",
        "attention alone 32 x 1",
        "attention by SDPA 32 x 1",
        "decode 32 x 2",
        "attention alone 32 x 2",
        "attention by SDPA 32 x 2",
    ]
    assert [figure.unit for figure in figures] == ["tok/s", *6 * ["ms"]]
    for figure in figures:
        assert figure.limit is not None
        is_below = figure.value < figure.limit
        assert is_below == (figure.unit == "tok/s"), figure
    # Both heads' keys and values of 32 positions, in two layers.
    read_bytes = 2 * 2 * 32 * 16 * 4
    assert figures[2].limit == figures[3].limit == pytest.approx(1000 * read_bytes / 4000e9)


def test_a_variant_runs_in_a_process_of_its_own_and_what_goes_wrong_there_is_told(model: Path) -> None:
    section = gpu.stepped("tiny", _job(model, batches=[1]))
    assert section.failure is None
    assert [figure.name for figure in section.figures] == ["prefill 32", "decode 32 x 1", "attention alone 32 x 1"]
    broken = gpu.stepped("broken", _job(model, flags={"device": "cpu", "attention": "flashinfer"}))
    assert broken.failure is not None
    assert "--attention flashinfer needs a CUDA device" in broken.failure


def test_the_report_is_dated_and_has_the_share_of_each_limit(tmp_path: Path) -> None:
    device = FakeDevice()
    sections = [
        gpu.Section(title="tests: 40 passed"),
        gpu.Section(
            title="FlashInfer",
            figures=(
                Figure(name="decode 1024 x 8", value=4.0, unit="ms", limit=1.0),
                Figure(name="prefill 1024", value=30_000, unit="tok/s", limit=60_000),
                Figure(name="TTFT cold 1024", value=20.0, unit="ms"),
            ),
        ),
        gpu.Section(title="over HTTP: vllm", failure="it was not ready"),
    ]
    path = gpu.write_report(tmp_path, device, ceilings(device), sections, command="python -m bench.gpu M", now=NOW)
    assert path.name == "gpu-2026-11-30.md"
    text = path.read_text()
    for line in (
        "# On a NVIDIA H200, 2026-11-30",
        f", torch {torch.__version__}, CUDA {torch.version.cuda}, flashinfer-python ",
        "copying 4000 GB/s, bfloat16 products 800 TFLOP/s (data sheet: 4800 GB/s, 989 TFLOP/s).",
        "## tests: 40 passed",
        "| decode 1024 x 8 | 4 ms | 1 ms | 25% |",
        "| prefill 1024 | 30000 tok/s | 60000 tok/s | 50% |",
        "| TTFT cold 1024 | 20 ms | | |",
        "**failed**\n\n```text\nit was not ready\n```",
    ):
        assert line in text


def test_a_device_s_sheet_is_found_by_its_name() -> None:
    for name, gb_s in (("NVIDIA H100 80GB HBM3", 3350), ("NVIDIA H100 PCIe", 2000), ("NVIDIA L4", 300)):
        sheet = sheet_of(name)
        assert sheet is not None
        assert sheet.read_gb_s == gb_s
    assert sheet_of("NVIDIA L40S") != sheet_of("NVIDIA L4")
    assert sheet_of("Something else") is None


def test_other_servers_are_asked_where_they_are_installed_and_want_a_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.gpu_servers.find_spec", lambda name: object() if name == "vllm" else None)
    assert names() == ["axil", "vllm"]
    for name in COMMANDS:
        with pytest.raises(CannotMeasure, match="embedded model"), serving(name, None, []):
            pass


def test_the_best_of_a_few_runs_counts() -> None:
    turns: list[int] = []
    assert timed_ms(lambda: turns.append(1), torch.device("cpu")) < 1000
    assert len(turns) > 2


def test_prompts_leave_room_in_the_context_for_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    async def asked(client: object, prompt: tuple[int, ...], *, max_tokens: int) -> Answer:
        lengths.append(len(prompt) + max_tokens)
        return mock.Mock(spec=Answer, ttft_s=0.1)

    async def batch_rate(client: object, prompts: list[tuple[int, ...]], *, num_tokens: int) -> float:
        lengths.extend(len(prompt) + num_tokens for prompt in prompts)
        return 100.0

    monkeypatch.setattr("bench.gpu_servers.connected", lambda url, model: nullcontext())
    monkeypatch.setattr("bench.gpu_servers.asked", asked)
    monkeypatch.setattr("bench.gpu_servers.batch_rate", batch_rate)
    figures = measured("http://127.0.0.1:1", contexts=[1024, 8192], batches=[1, 2])
    assert len(figures) == 8
    assert max(lengths) == 8192
    assert OUTPUT_TOKENS < 1024


def test_what_has_been_measured_is_written_before_the_next_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(title: str, job: Job) -> gpu.Section:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "CudaDevice", FakeDevice)
    monkeypatch.setattr(gpu, "tested", lambda: gpu.Section(title="tests: 40 passed"))
    monkeypatch.setattr(gpu, "stepped", killed)
    with pytest.raises(KeyboardInterrupt):
        gpu.main(["--out", str(tmp_path)])
    (report,) = tmp_path.glob("gpu-*.md")
    assert "## tests: 40 passed" in report.read_text()


def test_the_whole_command_writes_a_section_for_each_variant_and_server_and_its_status_says_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "CudaDevice", FakeDevice)
    monkeypatch.setattr(gpu, "tested", lambda: gpu.Section(title="tests: 40 passed"))
    monkeypatch.setattr(gpu, "stepped", lambda title, job: gpu.Section(title=title))
    monkeypatch.setattr(gpu, "served", lambda name, *rest: gpu.Section(title=name, failure="not ready"))
    assert gpu.main(["--out", str(tmp_path)]) == 1
    (report,) = tmp_path.glob("gpu-*.md")
    titles = [line.removeprefix("## ") for line in report.read_text().splitlines() if line.startswith("## ")]
    assert titles == ["tests: 40 passed", *gpu.VARIANTS, *names()]
