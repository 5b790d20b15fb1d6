"""Settings by name, checked: the keyword arguments of an engine, and the keys of a configuration file.

Knows no command line; `wire/flags.py` says what the flags are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wire.flags import checked_value, flag_names
from wire.names import near

from .config import ENGINE_FLAG_GROUPS, FLAG_GROUPS, HttpConfig, ServerConfig

_OF_HTTP = "chat_template"
"""The one setting of the HTTP front that is about text, so that an engine has it too."""


def engine_config(model: str | None, settings: Mapping[str, object]) -> ServerConfig:
    """The configuration of an engine.

    Raises:
        ValueError: a setting is unknown, of the wrong type or out of its range; the message names it.
    """
    known: dict[str, tuple[str, type[Any]]] = {
        name: (group, cls) for group, _, cls in ENGINE_FLAG_GROUPS for name in flag_names(cls)
    }
    known[_OF_HTTP] = ("http", HttpConfig)
    groups: dict[str, dict[str, Any]] = {group: {} for group, _, _ in FLAG_GROUPS}
    for name, value in settings.items():
        if name not in known:
            raise ValueError(f"an Engine has no setting {name!r}{near(name, known)}")
        group, cls = known[name]
        groups[group][name] = checked_value(cls, name, value)
    sections: dict[str, Any] = {group: cls(**groups[group]) for group, _, cls in FLAG_GROUPS}
    return ServerConfig(model=model, **sections)
