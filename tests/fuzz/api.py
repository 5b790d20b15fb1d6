"""schemathesis over a running server's OpenAPI document: no answer may be a 5xx, and none may stay away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LATE_S = 60
"""An answer that takes longer counts as lost."""


def fuzz_api(url: str, directory: Path, *, seed: int, num_examples: int, within_s: int) -> str:
    """Send right and wrong requests to every operation; gives what schemathesis has said.

    Raises:
        AssertionError: an answer was a server's error, or did not come.
    """
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        f"{url}/openapi.json",
        "--checks=not_a_server_error",
        # Operators' wishes that all others be refused, or wait, from then on.
        "--exclude-path=/drain",
        "--exclude-path=/pause_generation",
        "--phases=examples,fuzzing",
        f"--seed={seed}",
        f"--max-examples={num_examples}",
        f"--max-time={within_s}",
        f"--request-timeout={LATE_S}",
        "--suppress-health-check=all",
        "--warnings=off",
        "--continue-on-failure",
        "--no-color",
    ]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=within_s + 300, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout
