"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A loaded machine makes examples slowly; that says nothing about a test.
settings.register_profile("axil", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("axil")
