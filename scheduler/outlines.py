"""Outlines of the tree for those who look at it, made so seldom that no step is late for it.

However many look, the tree is walked at most once a second for each place that they look at, and for one hundredth of
the time. Knows no sockets.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from radix.cache import PrefixCache
from radix.node import Namespace
from radix.outline import WHOLE, Column
from wire.messages.to_tokenizer import ControlReply, Outline, RootName, Run

from .explain import Explainer
from .request import ClientId
from .salts import salt_digest
from .state import Reply

FRESH_S = 1.0
"""An outline serves everybody who asks while it is younger than this."""

TIME_SHARE = 0.01
"""The part of the time that may go into outlines."""

PATIENCE_S = 2.0
"""So long an outline waits for steps that last longer than the walk; then it is made nevertheless."""

_RETRY_S = 0.01

MAX_KEPT = 4
"""Places whose outlines are kept at once, the whole tree included."""

SHOWN_TOKENS = 512
"""The first tokens of a node that are told."""

_COLUMNS = tuple(column.name.lower().replace("used_ms", "age_ms") for column in Column)


class Asker(NamedTuple):
    """Who gets an answer."""

    client: ClientId
    control_id: int


@dataclass(slots=True)
class Outlines:
    """Who waits for an outline of what, those made lately, and when the next may be made.

    `took_s` is how long the last walk took, `waits_since_s` since when one has waited for a step that is longer.
    """

    asked: dict[int | None, list[Asker]] = field(default_factory=dict)
    made: dict[int | None, tuple[float, Outline]] = field(default_factory=dict)
    next_s: float = 0.0
    took_s: float = 0.0
    waits_since_s: float | None = None

    def ask(self, asker: Asker, under: int | None) -> None:
        """Note a wish for the whole tree, or for what is under a page."""
        self.asked.setdefault(under, []).append(asker)

    def due_s(self) -> float:
        """When the next may be made; never, while nobody asks."""
        return self.next_s if self.asked else float("inf")

    def answers(self, cache: PrefixCache, now_s: float, *, spare_s: float) -> list[Reply]:
        """Answer those whose outline is fresh, and make one more when it's time. To be called after a plan was sent.

        The runner is busy for `spare_s` with what it has: a walk that takes longer would let it wait for a plan.
        """
        if not self.asked:
            return []
        self.made = {under: each for under, each in self.made.items() if now_s - each[0] < FRESH_S}
        if now_s >= self.next_s:
            under = next((each for each in self.asked if each not in self.made), None)
            if under in self.asked and under not in self.made:
                self._make_in_time(cache, under, now_s, spare_s)
        ready = [under for under in self.asked if under in self.made]
        return [
            Reply(asker.client, ControlReply(control_id=asker.control_id, outline=self.made[under][1]))
            for under in ready
            for asker in self.asked.pop(under)
        ]

    def _make_in_time(self, cache: PrefixCache, under: int | None, now_s: float, spare_s: float) -> None:
        waits_since_s = now_s if self.waits_since_s is None else self.waits_since_s
        if self.took_s > spare_s and now_s - waits_since_s < PATIENCE_S:
            self.waits_since_s, self.next_s = waits_since_s, now_s + _RETRY_S
            return
        self.waits_since_s = None
        self._make(cache, under, now_s)

    def _make(self, cache: PrefixCache, under: int | None, now_s: float) -> None:
        made = outline_of(cache, under, now_s=now_s)
        if len(self.made) >= MAX_KEPT:
            del self.made[min(self.made, key=lambda each: self.made[each][0])]
        self.made[under] = now_s, made
        self.took_s = made.took_s
        self.next_s = now_s + made.took_s / TIME_SHARE


def outline_of(cache: PrefixCache, under: int | None, *, now_s: float) -> Outline:
    """The tree, or what is under a page; salts are told apart by digests that nobody without the key can guess from."""
    began_s = time.thread_time()
    outline = cache.outline(WHOLE._replace(under=under))
    entries = outline.entries
    entries[:, Column.USED_MS] = np.maximum(int(now_s * 1000) - entries[:, Column.USED_MS], 0)
    return Outline(
        columns=_COLUMNS,
        entries=entries.tobytes(),
        roots=tuple(_root_name(namespace) for namespace in outline.namespaces),
        num_nodes=int(entries[:, Column.NODES].sum()),
        took_s=time.thread_time() - began_s,
    )


def run_at(cache: PrefixCache, page: int, explainer: Explainer | None) -> Run | None:
    """The first tokens of the node that holds a page, and who computed that page."""
    run = cache.run_of(page, SHOWN_TOKENS)
    if run is None:
        return None
    author = None if explainer is None else explainer.author_of(page)
    return Run(start=run.start, num_tokens=run.num_tokens, token_ids=run.first, digest=run.digest, request_id=author)


def _root_name(namespace: Namespace) -> RootName:
    digest = salt_digest(namespace.salt) if namespace.salt else None
    return RootName(model=namespace.model, adapter=namespace.adapter, salt_digest=digest)
