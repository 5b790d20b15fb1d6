"""What the runner needs of a model, whoever wrote its layers."""

# T tokens in batch · B rows · D model dim · V vocabulary

from __future__ import annotations

from typing import Protocol, TypeVar

from torch import Tensor

from model_runner.attention.backend import AttentionBackend

Handle = TypeVar("Handle")


class Model(Protocol):
    """A decoder whose attention is the backend's."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""

    def forward(
        self, token_ids_T: Tensor, positions_T: Tensor, backend: AttentionBackend[Handle], handle: Handle
    ) -> Tensor:
        """Hidden states [T, D] that `logits` takes; stores the tokens' K and V."""

    def logits(self, hidden_BD: Tensor) -> Tensor:
        """Logits [B, V] in float32 of the given hidden states."""
