"""`make soak`: requests and parsers' inputs made up for minutes, and what must be left in the end.

The parsers run under atheris, one after another in processes of their own, while schemathesis asks a real server of a
small model. Nothing may fail or hang, no answer may be a 5xx, and in the end nothing is open and every page is free or
cached.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.server import Server
from tests.e2e.tiny_model import write_tiny_model

from .api import fuzz_api
from .targets import TARGETS


def main() -> int:
    """Returns 0 when nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    seconds = round(60 * options.minutes)
    folder = Path(tempfile.mkdtemp(prefix="axil-soak-"))
    print(f"seed {options.seed}, {seconds} s, findings in {folder}", flush=True)
    with ThreadPoolExecutor(1) as pool:
        parsers = pool.submit(_soaked_parsers, folder, seconds)
        found = _soaked_server(folder, seconds, options.seed) + parsers.result()
    for finding in found:
        print(f"FOUND {finding}")
    return 1 if found else 0


def _soaked_parsers(folder: Path, seconds: int) -> list[str]:
    found = []
    for name in TARGETS:
        log_path = folder / f"{name}.log"
        command = [sys.executable, "-m", "tests.fuzz.guided", name, str(max(1, seconds // len(TARGETS))), str(folder)]
        with log_path.open("wb") as log:
            status = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
        lines = log_path.read_text(errors="replace").splitlines()
        stats = [line.split()[-1] for line in lines if "number_of_executed_units" in line]
        print(f"{name}: {stats[0] if stats else '?'} inputs, status {status}", flush=True)
        found += [f"{name}: see {log_path}"] if status else []
    return found


def _soaked_server(folder: Path, seconds: int, seed: int) -> list[str]:
    model = write_tiny_model(folder / "model")
    server = Server(folder, str(model), "--dtype", "float32", "--max-total-tokens", "8000")
    try:
        server.wait_ready()
        said = fuzz_api(f"http://127.0.0.1:{server.port}", folder, seed=seed, num_examples=100_000, within_s=seconds)
        print("\n".join(said.splitlines()[-12:]), flush=True)
        server.assert_idle_and_whole()
        return ["the server's log has a traceback"] if "Traceback" in server.log else []
    except AssertionError as error:
        return [f"server: {error}", f"its log: {server.log_path}"]
    finally:
        server.stop()


if __name__ == "__main__":
    raise SystemExit(main())
