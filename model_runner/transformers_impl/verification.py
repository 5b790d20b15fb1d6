"""Compares a model on paged attention with the same model as transformers computes it, on a short prompt at start.

The last guard against computing something else: it knows nothing of attention, only that logits must agree.
"""

# T tokens in batch · V vocabulary

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from model_runner.attention.backend import AttentionBackend
from model_runner.batch import build_batch
from model_runner.models.model import Model
from model_runner.rows import RowTable
from wire.messages.encoding import ids_to_bytes
from wire.messages.to_runner import Admission, Chunk, StepPlan
from wire.sampling import SamplingParams

Handle = TypeVar("Handle")

_NUM_TOKENS = 24
PAGE_TOKENS = 16
_CHUNKS = ((5, 2), (1, 11), (17, 1), (1, 10))
"""Tokens that the two rows run in each step: pieces of a prompt and single tokens, beside each other."""

_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""How far a token's logits may be off, as a share of their spread.

Half of the tokens must keep to it: where experts are chosen, a last bit can choose another one. In bfloat16 many tokens
have that, and only gross mistakes are seen.
"""


def reference_logits(causal: PreTrainedModel) -> Tensor:
    """Logits [T, V] of the prompt in transformers' own attention; leaves it set."""
    causal.set_attn_implementation("eager")
    token_ids = _token_ids(causal.get_input_embeddings().weight.shape[0])
    with torch.inference_mode():
        logits_TV: Tensor = causal(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0].float()
    return logits_TV


@torch.inference_mode()
def verify(model: Model, backend: AttentionBackend[Handle], expected_TV: Tensor, dtype: torch.dtype) -> None:
    """Run the prompt in two rows at once, in unequal pieces, on a KV pool of a few pages.

    Raises:
        ValueError: the logits are not those expected.
    """
    token_ids = _token_ids(model.vocabulary)
    num_pages = -(-_NUM_TOKENS // PAGE_TOKENS)
    backend.make_kv_pool(2 * num_pages)
    table = RowTable(num_pages=2 * num_pages, page_tokens=PAGE_TOKENS)
    for row in range(2):
        pages = ids_to_bytes(range(row * num_pages, (row + 1) * num_pages))
        table.admit(Admission(row=row, request_id="", sampling=SamplingParams(), num_cached_tokens=0, page_ids=pages))
    errors = []
    for counts in _CHUNKS:
        starts = table.lengths[:2].tolist()
        wanted = [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
        chunks = tuple(
            Chunk(row=row, token_ids=ids_to_bytes(token_ids[i] for i in tokens), is_sampled=True)
            for row, tokens in enumerate(wanted)
        )
        batch = build_batch(table, StepPlan(step=0, chunks=chunks), vocabulary=model.vocabulary)
        hidden_TD = model.forward(batch.token_ids_T, batch.positions_T, backend, backend.begin_step(batch))
        logits_TV, own_TV = model.logits(hidden_TD), expected_TV[[i for tokens in wanted for i in tokens]]
        if logits_TV.shape != own_TV.shape:
            raise ValueError(f"its logits are {own_TV.shape[-1]} wide and its embedding has {model.vocabulary} rows")
        spread_T = (own_TV - own_TV.mean(-1, keepdim=True)).norm(dim=-1)
        errors.append((logits_TV - own_TV).norm(dim=-1) / spread_T)
        table.lengths[:2] = batch.kv_lens
    error = torch.cat(errors).median().item()
    if not error <= _TOLERANCES[dtype]:
        raise ValueError(f"its logits on paged attention are not those that transformers computes (off by {error:.1%})")


def _token_ids(vocabulary: int) -> list[int]:
    return [(7919 * i + 3) % vocabulary for i in range(_NUM_TOKENS)]
