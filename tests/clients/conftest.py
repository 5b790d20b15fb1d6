from __future__ import annotations

collect_ignore = ["sglang_frontend.py"]  # runs elsewhere: there is no sglang here
