"""Which pages go first when room is needed: one queue, and policies that rank what stands in it."""

from __future__ import annotations

from collections.abc import Callable

from .cost_aware import CostAware
from .lru import Lru
from .policy import Policy
from .scan_resistant import ScanResistant

POLICIES: dict[str, Callable[[int], Policy]] = {
    "lru": Lru,
    "scan-resistant": ScanResistant,
    "cost": CostAware,
}
"""By the names that `--eviction` takes; each is made for a pool of so many pages."""
