"""`axil serve --config FILE`: a YAML file whose keys are the flags. Knows no flag by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wire.flags import checked_value, flag_names
from wire.names import near

from .config import FLAG_GROUPS

_MODEL = "model"


def read_config_file(path: str) -> dict[str, Any]:
    """The values of a configuration file by the names of their fields, `model` among them.

    A key is a flag's name; dashes and underscores are alike, and those in front may be left out.

    Raises:
        ValueError: the file can't be read, or a key or a value is wrong; the message has the line.
    """
    import yaml  # most servers are started without a file

    try:
        text = Path(path).read_text("utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path} can't be read: {error}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"--config {path} is no valid YAML: {' '.join(str(error).split())}") from error
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"--config {path} must hold lines of the form `flag: value`")
    constructor = yaml.SafeLoader("")
    values: dict[str, Any] = {}
    for key, node in root.value:
        place = f"--config {path} line {key.start_mark.line + 1}"
        name = str(key.value).lstrip("-").replace("-", "_").lower()
        if name in values:
            raise ValueError(f"{place}: {key.value!r} is given twice")
        try:
            values[name] = _checked(str(key.value), name, constructor.construct_object(node, deep=True))
        except yaml.YAMLError as error:
            raise ValueError(f"{place}: {' '.join(str(error).split())}") from error
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
    return values


def _checked(key: str, name: str, value: object) -> object:
    owners = {field: cls for _, _, cls in FLAG_GROUPS for field in flag_names(cls)}
    if name == _MODEL:
        if not isinstance(value, str):
            raise ValueError(f"model must be text, got {value!r}")
        return value
    if name not in owners:
        known = [_MODEL, *(field.replace("_", "-") for field in owners)]
        raise ValueError(f"axil serve has no flag {key!r}{near(name.replace('_', '-'), known)}")
    return checked_value(owners[name], name, value)
