from __future__ import annotations

import psutil
import pytest

from bench.neighbours import main, neighbours


def test_neighbours_compute_until_the_end_and_no_longer() -> None:
    with neighbours(2) as processes:
        assert len(processes) == 2
        for process in processes:
            seen = psutil.Process(process.pid)
            while seen.cpu_times().user < 0.2:
                assert process.poll() is None
    assert all(process.poll() is not None for process in processes)


@pytest.mark.e2e
def test_rows_are_decoded_alone_and_beside_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--serve-flags=--max-total-tokens 1024"
    assert (
        main(["--busy", "1", "--batches", "2", "--context", "8", "--output-tokens", "8", "--repeats", "1", flags]) == 0
    )
    printed = capsys.readouterr().out
    assert all(
        name in printed for name in ("decode_b2_alone_tok_s", "decode_b2_beside_1_tok_s", "decode_b2_left_share")
    )
