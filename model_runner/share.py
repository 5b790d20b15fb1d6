"""What each rank of a tensor-parallel group holds of a model. Knows no tensors and nobody to talk to.

Query heads, the MLP's inner columns and the vocabulary are cut into consecutive stretches. So are kv heads; where
there are fewer of them than ranks, several ranks hold the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import StartError
from .model_config import ModelConfig

_ADDED_ONCE = ("self_attn.o_proj.bias", "mlp.down_proj.bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a rank takes of a checkpoint's tensor: rows (of one with one dimension: elements), and columns if not all.

    `whole_shape` is the tensor's own.
    """

    whole_shape: tuple[int, ...]
    rows: slice
    columns: slice | None = None

    def there(self, rows: slice) -> slice:
        """Where the given rows of the part lie in the tensor."""
        return slice(self.rows.start + rows.start, self.rows.start + rows.stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's stretches of the model `whole`."""

    whole: ModelConfig
    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        """See whether the model can be cut like this.

        Raises:
            StartError: it can't; names the flag, what does not divide, and numbers that do.
        """
        whole, count = self.whole, self.num_ranks
        divided = {
            "query heads": whole.num_heads % count,
            "kv heads": whole.num_kv_heads % count and count % whole.num_kv_heads,
            "inner columns of the MLP": whole.intermediate_size % count,
        }
        sizes = (whole.num_heads, whole.num_kv_heads, whole.intermediate_size)
        for (what, remainder), size in zip(divided.items(), sizes, strict=True):
            if remainder:
                raise StartError(
                    f"--tensor-parallel {count} does not divide the model's {size} {what}; "
                    f"set it to {' or '.join(map(str, possible_ranks(whole)))}"
                )

    @property
    def heads(self) -> range:
        """Query heads."""
        return self._stretch(self.whole.num_heads)

    @property
    def kv_heads(self) -> range:
        """Kv heads: those that the query heads look at."""
        if self.num_ranks <= self.whole.num_kv_heads:
            return self._stretch(self.whole.num_kv_heads)
        own = self.rank * self.whole.num_kv_heads // self.num_ranks
        return range(own, own + 1)

    @property
    def inner(self) -> range:
        """Inner columns of the MLP."""
        return self._stretch(self.whole.intermediate_size)

    @property
    def vocabulary(self) -> range:
        """Token ids; the last ranks may have fewer, or none."""
        return self._stretch(self.whole.vocabulary)

    def config(self) -> ModelConfig:
        """The model as this rank computes it: its heads and inner columns, all else (the vocabulary too) whole."""
        return replace(
            self.whole,
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.inner),
        )

    def holds(self, name: str) -> bool:
        """Whether this rank has a place for a tensor: what is added to a sum over ranks is added by the first one."""
        return self.rank == 0 or not name.endswith(_ADDED_ONCE)

    def part(self, name: str, own_shape: tuple[int, ...]) -> Part:
        """What to read of a tensor, by its name in a transformers checkpoint, for a parameter of `own_shape`."""
        whole, dim = self.whole, self.whole.head_dim
        queries = slice(self.heads.start * dim, self.heads.stop * dim)
        inner = slice(self.inner.start, self.inner.stop)
        match name.split(".")[-2]:
            case "q_proj":
                return _rows(queries, whole.num_heads * dim, own_shape)
            case "k_proj" | "v_proj":
                own = slice(self.kv_heads.start * dim, self.kv_heads.stop * dim)
                return _rows(own, whole.num_kv_heads * dim, own_shape)
            case "gate_proj" | "up_proj":
                return _rows(inner, whole.intermediate_size, own_shape)
            case "embed_tokens" | "lm_head":
                return _rows(slice(self.vocabulary.start, self.vocabulary.stop), whole.vocabulary, own_shape)
            case "o_proj" if len(own_shape) == 2:
                return _columns(queries, whole.num_heads * dim, own_shape)
            case "down_proj" if len(own_shape) == 2:
                return _columns(inner, whole.intermediate_size, own_shape)
            case _:
                return _rows(slice(0, own_shape[0]), own_shape[0], own_shape)

    def _stretch(self, count: int) -> range:
        size = -(-count // self.num_ranks)
        return range(min(self.rank * size, count), min((self.rank + 1) * size, count))


def possible_ranks(config: ModelConfig) -> list[int]:
    """The numbers of ranks that a model can be cut for, up to its query heads."""
    kv_heads = config.num_kv_heads
    return [
        count
        for count in range(1, config.num_heads + 1)
        if not (config.num_heads % count or config.intermediate_size % count or (kv_heads % count and count % kv_heads))
    ]


def _rows(own: slice, count: int, own_shape: tuple[int, ...]) -> Part:
    return Part(whole_shape=(count, *own_shape[1:]), rows=own)


def _columns(own: slice, count: int, own_shape: tuple[int, ...]) -> Part:
    is_all = (own.start, own.stop) == (0, count)
    return Part(whole_shape=(own_shape[0], count), rows=slice(0, own_shape[0]), columns=None if is_all else own)
