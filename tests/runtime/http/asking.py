"""How the tests ask /generate, in one piece and as a stream."""

from __future__ import annotations

import json

import aiohttp


async def generate(http: aiohttp.ClientSession, **body: object) -> dict[str, object]:
    """The answer to a request for /generate."""
    async with http.post("/generate", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return answer


async def stream(http: aiohttp.ClientSession, path: str = "/generate", **body: object) -> list[dict[str, object]]:
    """The frames of a stream, each of which is one line of data."""
    async with http.post(path, json={"stream": True, **body}) as response:
        raw = await response.read()
        assert response.status == 200, raw
    return frames_of(raw)


def frames_of(raw: bytes) -> list[dict[str, object]]:
    """The frames of a stream, each of which is one line of data."""
    *frames, done, rest = raw.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert all(frame.startswith(b"data: {") and b"\n" not in frame for frame in frames)
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames]
