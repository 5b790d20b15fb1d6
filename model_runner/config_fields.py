"""Numbers out of a decoded `config.json`, with errors that name the key. Knows no key."""

from __future__ import annotations

from collections.abc import Mapping


def integer(raw: Mapping[str, object], key: str, *, default: int | None = None) -> int:
    """A positive whole number; null means the default.

    Raises:
        ValueError: it is something else, or absent without a default.
    """
    value = number(raw, key, default=default)
    if value != int(value) or value < 1:
        raise ValueError(f"{key} must be a positive whole number, got {value}")
    return int(value)


def number(raw: Mapping[str, object], key: str, *, default: float | None = None) -> float:
    """A number; null means the default.

    Raises:
        ValueError: it is something else, or absent without a default.
    """
    value = raw.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"the model's configuration needs a number for {key}, got {value}")
    return value


def optional_number(raw: Mapping[str, object], key: str) -> float | None:
    """A number, or None where it is absent or null.

    Raises:
        ValueError: it is something else.
    """
    return None if raw.get(key) is None else number(raw, key)
