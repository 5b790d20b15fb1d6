"""What holds for all tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hypothesis import HealthCheck, settings

# Triton looks at this when it is imported, which may be by any package. With a GPU its programs are compiled for that.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A loaded machine makes examples slowly; that says nothing about a test.
settings.register_profile("axil", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("axil")

# What a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
