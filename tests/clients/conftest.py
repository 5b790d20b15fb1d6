from __future__ import annotations

collect_ignore = ["sglang_frontend.py", "chat_clients.py"]  # run elsewhere: what they import is not here
