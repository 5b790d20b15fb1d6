"""Every message between the processes: one module a direction, with its union and its decoder. Knows no sockets.

Codec: msgpack with the union as its type, so a malformed frame is a typed error (`msgspec.ValidationError`).
`encoding.py` packs what any of them carries. `docs/messages.md` is generated from the first lines of the docstrings.
"""
