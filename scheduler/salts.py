"""What a cache salt is called where it's shown or written: a digest under a key that is drawn anew at each start.

A salt may be a tenant's name, so a digest that anybody can compute would let it be guessed. Knows nobody who asks.
"""

from __future__ import annotations

import hashlib
import secrets

_KEY = secrets.token_bytes(16)


def salt_digest(salt: str) -> str:
    """Name a salt; the same for the same salt, while this process lives."""
    return hashlib.blake2b(salt.encode(), key=_KEY, digest_size=6).hexdigest()
