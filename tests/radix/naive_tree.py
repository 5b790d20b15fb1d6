"""An obviously correct prefix cache: every cached page is one entry, keyed by all tokens up to its end."""

from __future__ import annotations

Tokens = tuple[int, ...]


class NaiveTree:
    """Whole pages only, served one request after the other; evicts the least recently used page that has none below."""

    def __init__(self, *, num_pages: int, page_tokens: int) -> None:
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        self.used_at: dict[Tokens, int] = {}
        self.clock = 0

    def match(self, tokens: Tokens) -> int:
        found = 0
        while found + self.page_tokens <= len(tokens) and tokens[: found + self.page_tokens] in self.used_at:
            found += self.page_tokens
        return found

    def serve(self, tokens: Tokens) -> int:
        """Run a request whose whole pages are cached afterwards; returns the tokens that it found cached."""
        found = self.match(tokens)
        self.clock += 1
        path = [tokens[:end] for end in range(self.page_tokens, len(tokens) + 1, self.page_tokens)]
        missing = [prefix for prefix in path if prefix not in self.used_at]
        for prefix in path:
            if prefix in self.used_at:
                self.used_at[prefix] = self.clock
        room = self.num_pages - len(missing) - (len(tokens) % self.page_tokens > 0)
        while len(self.used_at) > room:
            self._evict_one(set(path))
        for prefix in missing:
            self.used_at[prefix] = self.clock
        return found

    def _evict_one(self, pinned: set[Tokens]) -> None:
        parents = {prefix[: -self.page_tokens] for prefix in self.used_at}
        leaves = [prefix for prefix in self.used_at if prefix not in parents and prefix not in pinned]
        del self.used_at[min(leaves, key=lambda prefix: (self.used_at[prefix], -len(prefix)))]
