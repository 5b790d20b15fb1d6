from __future__ import annotations

import functools
import gzip
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from runtime.config import HttpConfig
from tests.fakes import running_server


@dataclass(slots=True)
class Unpacking:
    """What was decompressed, and in which threads."""

    num_bytes: int = 0
    threads: set[int] = field(default_factory=set)


@pytest.fixture
def unpacking(monkeypatch: pytest.MonkeyPatch) -> Unpacking:
    seen = Unpacking()
    make = zlib.decompressobj

    class Watched:
        def __init__(self, wbits: int) -> None:
            self._stream = make(wbits)

        def __getattr__(self, name: str) -> object:
            return getattr(self._stream, name)

        def decompress(self, data: bytes, max_length: int) -> bytes:
            piece = self._stream.decompress(data, max_length)
            seen.num_bytes += len(piece)
            seen.threads.add(threading.get_ident())
            return piece

    monkeypatch.setattr(zlib, "decompressobj", Watched)
    return seen


async def test_a_body_that_is_small_only_while_compressed_is_a_413_and_is_not_unpacked_on_the_loop(
    tmp_path: Path, unpacking: Unpacking
) -> None:
    config = HttpConfig(port=0, max_body_bytes=100_000)
    bomb = gzip.compress(b'{"text": "' + b"x" * 20_000_000 + b'"}')
    assert len(bomb) < 100_000
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with (
        running_server(tmp_path, config=config) as server,
        aiohttp.ClientSession(server.url) as http,
        http.post("/generate", data=bomb, headers=headers) as response,
    ):
        assert response.status == 413
        assert (await response.json())["error"]["code"] == "body_too_large"
    assert unpacking.num_bytes == 100_001
    assert threading.get_ident() not in unpacking.threads


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("GZip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", functools.partial(zlib.compress, wbits=-zlib.MAX_WBITS)),
        ("identity", bytes),
    ],
)
async def test_compressed_bodies_are_read(
    http: aiohttp.ClientSession, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    async with http.post("/generate", data=pack(b'{"text": "x"}'), headers=headers) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("encoding", "body", "why"),
    [
        ("gzip", b"no such thing", "is not in gzip, as its Content-Encoding says"),
        ("deflate", b"no such thing", "is not in deflate, as its Content-Encoding says"),
        ("gzip", gzip.compress(b"{}")[:-3], "it ends too soon. Send it whole"),
        ("gzip", gzip.compress(b"{}") + b"x", "something follows behind its end"),
        ("br", b"{}", 'Content-Encoding is "br"; gzip and deflate are read'),
        ("gzip, gzip", b"{}", 'Content-Encoding is "gzip, gzip"; gzip and deflate are read'),
    ],
    ids=["no gzip", "no deflate", "cut off", "more behind", "unknown", "two"],
)
async def test_a_body_that_is_not_what_its_encoding_says_is_a_400(
    http: aiohttp.ClientSession, encoding: str, body: bytes, why: str
) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    async with http.post("/generate", data=body, headers=headers) as response:
        assert response.status == 400
        error = (await response.json())["error"]
        assert why in error["message"]
        assert error["param"] == "Content-Encoding"
