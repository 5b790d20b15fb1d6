import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from wire.sockets import IPC_PATH_LIMIT_BYTES, Endpoints, bound, connected, make_run_dir


@pytest.fixture
def run_dir() -> Iterator[Path]:
    path = make_run_dir()
    yield path
    shutil.rmtree(path)


def test_a_run_directory_is_private_and_unlike_any_other(run_dir: Path) -> None:
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    other = make_run_dir()
    other.rmdir()
    assert other != run_dir


def test_where_temporary_paths_are_long_the_run_directory_is_in_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * IPC_PATH_LIMIT_BYTES)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    path = make_run_dir()
    path.rmdir()
    assert path.parent == Path("/tmp")
    assert list(deep.iterdir()) == []


def test_every_address_of_a_launch_fits_a_unix_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = make_run_dir()
    path.rmdir()
    endpoints = Endpoints(str(path))
    addresses = {endpoints.requests, endpoints.plans(0), endpoints.results}
    assert len(addresses) == 3
    for address in addresses:
        assert len(address.removeprefix("ipc://").encode()) <= IPC_PATH_LIMIT_BYTES


def test_a_dealer_s_message_arrives_with_its_identity_and_thousands_wait_unread(run_dir: Path) -> None:
    endpoints = Endpoints(str(run_dir))
    with zmq.Context() as context:
        router = bound(context, zmq.ROUTER, endpoints.requests)
        dealer = connected(context, zmq.DEALER, endpoints.requests, identity=b"one")
        for i in range(5000):
            dealer.send(b"%d" % i, zmq.DONTWAIT)
        for i in range(5000):
            assert router.poll(10_000)
            assert router.recv_multipart() == [b"one", b"%d" % i]
        router.close()
        dealer.close()
