"""The `axil` command with fake children."""

import sys

from runtime.cli import run
from runtime.config import MODULES

if __name__ == "__main__":
    sys.exit(run(version="0", modules=dict.fromkeys(MODULES, "tests.runtime.fake_child")))
