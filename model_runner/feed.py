"""The tokens that decode rows go on from. They stay on the device: a step can be queued before its tokens are known."""

# B rows · T tokens in batch

from __future__ import annotations

import torch
from torch import Tensor

_GROWTH = 64


class LastTokens:
    """For each row, the token that was chosen last."""

    def __init__(self, device: torch.device) -> None:
        self._by_row = torch.zeros(_GROWTH, dtype=torch.int64, device=device)

    def put(self, rows_B: Tensor, token_ids_B: Tensor, *, highest_row: int) -> None:
        """Keep the rows' new tokens."""
        missing = highest_row + 1 - len(self._by_row)
        if missing > 0:
            self._by_row = torch.cat((self._by_row, self._by_row.new_zeros(max(missing, len(self._by_row)))))
        self._by_row.index_copy_(0, rows_B, token_ids_B)

    def fill(self, token_ids_T: Tensor, rows_B: Tensor) -> None:
        """Write the rows' tokens over the first of a batch's."""
        torch.index_select(self._by_row, 0, rows_B, out=token_ids_T[: len(rows_B)])
