"""One target under atheris, guided by what its inputs reach: `python -m tests.fuzz.guided TARGET SECONDS FOLDER`.

Ends with a status other than 0 when an input fails, hangs or takes too much memory; FOLDER has it then.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["runtime", "wire"]):
    from .targets import SEEDS, TARGETS

LONGEST_BYTES = 4096
HANGS_AFTER_S = 20
MEMORY_MB = 4096


def main(name: str, seconds: str, folder: str) -> None:
    """Never returns: the fuzzer ends the process."""
    corpus = Path(folder) / name
    corpus.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(SEEDS[name]):
        (corpus / f"seed{i}").write_bytes(seed)
    flags = [
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST_BYTES}",
        f"-timeout={HANGS_AFTER_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={folder}/failed-{name}-",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
