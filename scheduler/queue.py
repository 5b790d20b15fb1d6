"""The waiting requests: by id, by age, and in the order in which they are to be tried. Knows no rows and no pages."""

from __future__ import annotations

from collections.abc import Iterator

from .request import Request


class Queue:
    """Waiting requests, in no particular order."""

    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def get(self, request_id: str) -> Request | None:
        """The waiting request of this id."""
        return self._requests.get(request_id)

    def add(self, request: Request) -> None:
        """Queue a request: a new one, or one that was retracted."""
        self._requests[request.request_id] = request

    def remove(self, request: Request) -> None:
        """Take a request out, because it's admitted or has ended."""
        del self._requests[request.request_id]

    def oldest(self) -> Request | None:
        """The one that came first."""
        return min(self._requests.values(), key=lambda request: request.arrival, default=None)
