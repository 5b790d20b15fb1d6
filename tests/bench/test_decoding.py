from __future__ import annotations

import pytest

from bench.command import CannotMeasure
from bench.decoding import decode_rate


def test_tokens_count_between_the_last_beginning_and_the_first_end() -> None:
    early, late = [0.0, 1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0, 6.0]
    assert decode_rate([early], [5]) == pytest.approx(1.0)
    assert decode_rate([early, late], [5, 5]) == pytest.approx(2.0)
    # Pieces of two tokens each.
    assert decode_rate([early], [10]) == pytest.approx(2.0)


def test_rows_that_never_decode_together_are_not_measured() -> None:
    with pytest.raises(CannotMeasure, match="more tokens"):
        decode_rate([[0.0, 1.0], [2.0, 3.0]], [2, 2])
