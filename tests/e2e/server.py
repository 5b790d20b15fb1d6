"""A real server in its own processes, for the end-to-end tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deadline import DEADLINE_S
from tests.processes import is_alive, parts_of, resident_bytes

START_S = 180.0
ADDRESS = r"(?m)^axil serves .* at http://\S+:(\d+) "


def wait_until(is_true: Callable[[], bool], what: str, *, within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)


@dataclass(slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 - any JSON
        return json.loads(self.body)


class Server:
    """`axil serve` as a user starts it; `log` is what it has written so far.

    It takes a free port by itself and says which, since one that is looked for may be gone when the server is up.
    """

    def __init__(self, tmp_dir: Path, *flags: str) -> None:
        self.port = 0
        self.tmp_dir = tmp_dir
        self.log_path = tmp_dir / f"server-{len(list(tmp_dir.glob('server-*.log')))}.log"
        # One thread: with more, every parallel region waits for whichever thread a busy machine has put aside.
        command = [str(Path(sys.executable).with_name("axil")), "serve", "--threads", "1", "--port", "0"]
        environment = {**os.environ, "TMPDIR": str(tmp_dir), "OMP_NUM_THREADS": "1"}
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen([*command, *flags], stdout=log, stderr=log, env=environment)
        self.parts: dict[str, int] = {}

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_ready(self) -> Server:
        def is_ready() -> bool:
            assert self.process.poll() is None, f"the server ended while starting:\n{self.log}"
            return re.search(ADDRESS, self.log) is not None

        wait_until(is_ready, "ready", within_s=START_S)
        self.port = int(re.findall(ADDRESS, self.log)[0])
        assert self.get("/health").status == 200
        self.parts = parts_of(self.process.pid)
        assert {"scheduler", "model_runner", "runtime"} <= set(self.parts), self.parts
        return self

    def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return self._send(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers or {}))

    def delete(self, path: str) -> Reply:
        return self._send(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method="DELETE"))

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        all_headers = {"Content-Type": "application/json", **(headers or {})}
        return self._send(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, headers=all_headers))

    def generate(self, text: str, **sampling: object) -> Any:  # noqa: ANN401 - any JSON
        reply = self.post("/generate", {"text": text, "sampling_params": {"temperature": 0, **sampling}})
        assert reply.status == 200, reply.body
        return reply.json

    def metric(self, name: str) -> float:
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith((f"{name} ", f"{name}{{")):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {name}")

    def figures(self) -> dict[str, Any]:
        """The scheduler's state and counters, asked for now."""
        self.post("/abort_request", {"rid": "nobody"})
        figures: dict[str, Any] = self.get("/server_info").json["internal_states"][0]
        return figures

    def assert_idle_and_whole(self) -> None:
        """Nothing is open, and every page of the pool is free or cached."""
        wait_until(lambda: not (self.figures()["num_running"] or self.figures()["num_waiting"]), "idle", within_s=60)
        figures = self.figures()
        assert figures["free_pages"] + figures["cached_pages"] == figures["num_pages"], figures
        assert figures["evictable_pages"] == figures["cached_pages"], figures
        assert figures["quarantined_pages"] == figures["ledger_mismatches_total"] == 0, figures
        assert figures["broken_total"] == 0, figures

    def resident_bytes(self) -> dict[str, int]:
        """Memory of each part."""
        return {part: resident_bytes(pid) for part, pid in self.parts.items()}

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=DEADLINE_S)

    def assert_nothing_left(self) -> None:
        wait_until(lambda: not any(map(is_alive, self.parts.values())), f"processes {self.parts} gone")
        left = [path for path in self.tmp_dir.iterdir() if path.name.startswith("axil-")]
        wait_until(lambda: not any(path.exists() for path in left), f"run directory {left} removed")

    def _send(self, request: urllib.request.Request) -> Reply:
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S * 2) as reply:
                return Reply(reply.status, dict(reply.headers), reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, dict(error.headers), error.read())
