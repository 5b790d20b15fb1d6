"""What a recording holds, and what happens when it can't be written."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from scheduler import recorder as module
from scheduler.config import SchedulerConfig
from scheduler.recorder import Recorder
from tests.scheduler.harness import Harness, make_harness
from wire.recording import RecordedRequest, read_recording


def recording(harness: Harness, path: Path, *, with_ids: bool = False) -> Recorder:
    return Recorder(path, pool_tokens=harness.state.limits.pool_tokens, with_ids=with_ids, now_s=harness.now_s)


def ask(
    harness: Harness, recorder: Recorder, prompt: list[int], *, salt: str = "", max_new_tokens: int = 3
) -> list[int]:
    """As the loop does: note what is accepted and what is told."""
    request_id = f"r{harness.state.counters.requests_total}"
    harness.submit(request_id, prompt, salt=salt, max_new_tokens=max_new_tokens)
    request = harness.state.waiting.get(request_id)
    assert request is not None
    recorder.accepted(request)
    take = harness.take

    def noted(replies: list) -> None:  # type: ignore[type-arg]
        recorder.told(replies, now_s=harness.now_s)
        take(replies)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Harness, "take", lambda _, replies: noted(replies))
        harness.run()
    harness.now_s += 1
    return harness.outputs[request_id]


def rows_of(recorder: Recorder) -> list[RecordedRequest]:
    recorder.close()
    return read_recording(recorder.path)


def test_a_row_says_lengths_times_and_to_the_token_what_is_shared_with_whom(tmp_path: Path) -> None:
    harness = make_harness()
    recorder = recording(harness, tmp_path / "rows.jsonl")
    prompt = list(range(10, 21))
    answer = ask(harness, recorder, prompt)
    ask(harness, recorder, [*prompt, *answer, 1, 2])
    ask(harness, recorder, [*prompt[:6], 3, 3, 3])
    ask(harness, recorder, prompt, salt="secret")
    first, second, third, salted = rows_of(recorder)
    assert (first.row, first.input_length, first.output_length, first.end) == (0, 11, 3, "length")
    assert (first.follows, first.shared_tokens, first.cached_tokens) == (None, 0, 0)
    assert (second.follows, second.shared_tokens) == (0, 14)
    assert (third.follows, third.shared_tokens) in ((0, 6), (1, 6))
    assert (salted.follows, len(salted.salt)) == (None, 12)
    assert [row.session for row in (first, second, third, salted)] == [0, 0, 2, 3]
    assert "secret" not in recorder.path.read_text()
    assert second.cached_tokens == harness.reuses["r1"].cached_tokens
    assert first.timestamp == 0
    assert second.timestamp > 1000
    assert first.ttft_ms is not None
    assert first.latency_ms is not None
    assert 0 < first.ttft_ms < first.latency_ms


def test_blocks_have_small_numbers_and_equal_ones_are_equal_beginnings(tmp_path: Path) -> None:
    harness = make_harness(num_pages=1000)
    recorder = recording(harness, tmp_path / "rows.jsonl")
    block = [7] * 512
    for prompt in ([*block, *block, 1], [*block, 2], [*block, *block, 1]):
        ask(harness, recorder, prompt)
    assert [row.hash_ids for row in rows_of(recorder)] == [(0, 1, 2), (0, 3), (0, 1, 2)]


@pytest.mark.parametrize("with_ids", [False, True])
def test_token_ids_are_written_only_when_asked_for(tmp_path: Path, with_ids: bool) -> None:
    harness = make_harness()
    recorder = recording(harness, tmp_path / "rows.jsonl", with_ids=with_ids)
    ask(harness, recorder, [4, 5, 6])
    (row,) = rows_of(recorder)
    assert row.prompt_ids == ((4, 5, 6) if with_ids else None)


def test_no_recording_is_overwritten(tmp_path: Path) -> None:
    harness = make_harness()
    names = []
    for _ in range(3):
        recorder = recording(harness, tmp_path / "rows.jsonl")
        recorder.close()
        names.append(recorder.path.name)
    assert names == ["rows.jsonl", "rows.jsonl.1", "rows.jsonl.2"]
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}, "others may read prompts"


def test_a_directory_is_refused_and_nothing_is_made_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "recordings"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        recording(make_harness(), path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_ends_the_recording_with_one_loud_line_and_serving_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - the recorder closes it
    monkeypatch.setattr(module, "_new_file", lambda path: (full, path))
    harness = make_harness()
    recorder = recording(harness, tmp_path / "rows.jsonl")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert ask(harness, recorder, [4, 5, 6])
        recorder.close()
    (record,) = caplog.records
    assert "ENDED: No space left on device" in record.getMessage()


def test_a_writer_that_falls_behind_leaves_requests_out_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_REQUESTS", 1)
    monkeypatch.setattr(Recorder, "_write", lambda recorder, file: file.close())
    harness = make_harness()
    recorder = recording(harness, tmp_path / "rows.jsonl")
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            ask(harness, recorder, [4, 5, 6])
    assert [record.getMessage() for record in caplog.records] == [
        f"recording into {recorder.path} is too slow: requests are left out"
    ]


def test_text_without_a_recording_is_refused() -> None:
    with pytest.raises(ValueError, match="--record FILE"):
        SchedulerConfig(record_text=True)
