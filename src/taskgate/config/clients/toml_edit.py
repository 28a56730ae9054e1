"""Change the tables of servers in a TOML text; comments and everything else are kept. Pure."""

from __future__ import annotations

import tomllib
from typing import Any

import tomlkit

from taskgate.config.clients.client import Pointer


def toml_value_at(text: str, pointer: Pointer) -> Any:
    """Return the plain value at a pointer, or None."""
    here: Any = tomllib.loads(text)
    for key in pointer:
        if not isinstance(here, dict) or key not in here:
            return None
        here = here[key]
    return here


def toml_set_value(text: str, pointer: Pointer, value: dict[str, Any]) -> str:
    """Return the text with a table of tables at a pointer of one key."""
    (key,) = pointer
    document = tomlkit.parse(text)
    if key in document:
        document.remove(key)
    tables = tomlkit.table(is_super_table=True)
    for name, entry in value.items():
        table = tomlkit.table()
        table.update(entry)
        tables.append(name, table)
    body = tomlkit.dumps(document)
    if not value:
        return body
    fragment = tomlkit.document()
    fragment.append(key, tables)
    gap = "" if not body.strip() else "\n" if body.endswith("\n") else "\n\n"
    return f"{body}{gap}{tomlkit.dumps(fragment)}"


def toml_remove_value(text: str, pointer: Pointer) -> str:
    """Return the text without the tables at a pointer of one key."""
    return toml_set_value(text, pointer, {})
