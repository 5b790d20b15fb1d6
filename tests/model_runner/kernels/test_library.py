from __future__ import annotations

import mmap

import pytest
import torch

from model_runner.kernels.library import HUGE_PAGE_BYTES, huge_tensor


@pytest.mark.parametrize("has_huge_pages", [True, False])
def test_memory_is_zero_and_writable_with_huge_pages_and_without(
    has_huge_pages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_huge_pages:
        monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)  # as where the kernel was built without them
    tensor = huge_tensor((3, HUGE_PAGE_BYTES // 4 + 1), torch.float32)
    assert tensor.shape == (3, HUGE_PAGE_BYTES // 4 + 1) and not tensor.any()
    tensor.fill_(1)
    assert tensor.all()
