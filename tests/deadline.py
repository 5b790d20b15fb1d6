"""How long tests wait for what has to come. It never comes late on a busy machine, only later."""

DEADLINE_S = 60.0
"""Enough for a machine several times slower than a quiet one; a test that really waits for so long has failed."""
