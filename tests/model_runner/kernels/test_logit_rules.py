from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from model_runner.kernels.library import Library
from model_runner.kernels.logit_rules import LogitChanges, LogitKernels
from model_runner.logit_rules import changed

VOCABULARY = 37
_IDS = st.lists(st.integers(0, VOCABULARY - 1), unique=True, max_size=VOCABULARY)
_FACTORS = st.floats(-2, 2, width=32)


@st.composite
def _changes(draw: st.DrawFn) -> LogitChanges:
    seen, biased = draw(_IDS), draw(_IDS)
    counts = draw(st.lists(st.integers(0, 5), min_size=len(seen), max_size=len(seen)))
    biases = draw(st.lists(_FACTORS, min_size=len(biased), max_size=len(biased)))
    return LogitChanges(
        seen_ids=np.array(seen, np.int64),
        counts=np.array(counts, np.float32),
        repetition=draw(st.floats(0.1, 2)),
        frequency=draw(_FACTORS),
        presence=draw(_FACTORS),
        biased_ids=np.array(biased, np.int64),
        biases=np.array(biases, np.float32),
        forbidden_ids=np.array(draw(_IDS), np.int64),
    )


@given(
    changes=st.dictionaries(st.integers(0, 5), _changes()), seed=st.integers(0, 2**31), threads=st.sampled_from([1, 3])
)
def test_changed_logits_have_the_bits_that_torch_gives(
    library: Library, changes: dict[int, LogitChanges], seed: int, threads: int
) -> None:
    logits = 5 * torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    before = logits.clone()
    library.set_threads(threads)
    try:
        given_bits = LogitKernels(library).changed(logits, changes)
    finally:
        library.set_threads(1)
    assert torch.equal(given_bits.view(torch.int32), changed(logits, changes).view(torch.int32))
    assert torch.equal(logits, before)
