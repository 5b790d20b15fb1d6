"""What holds for all tests."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# Triton looks at this when it is imported, which may be by any package. With a GPU its programs are compiled for that.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A loaded machine makes examples slowly; that says nothing about a test.
settings.register_profile("axil", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("axil")
