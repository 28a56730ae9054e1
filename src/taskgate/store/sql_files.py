"""Load SQL from `.sql` files: statements by name, migrations by number.

Statements that both databases understand are in `store/queries/`; an adapter's own `queries/` folder has those that differ. The
shared ones use two notations that one of the databases lacks, and are translated when they are loaded:

- a cast `:value::type`, which PostgreSQL needs where it cannot infer the type of a parameter, and which SQLite does not know;
- `IN (SELECT value FROM json_each(:ids))` for a list of ids as JSON, which is SQLite's; PostgreSQL uses an index only with an
  array.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

SHARED: Final = "taskgate.store"
_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_CAST: Final = re.compile(r"::\w+(\[\])?")
_IN_LIST: Final = re.compile(r"\bIN \(SELECT value FROM json_each\(:(\w+)\)\)")


def for_sqlite(text: str) -> str:
    return _CAST.sub("", text)


def for_postgres(text: str) -> str:
    return _IN_LIST.sub(r"= ANY(ARRAY(SELECT json_array_elements_text(:\1::json)))", text)


def read_queries(package: str, translate: Callable[[str], str]) -> dict[str, str]:
    """Return the statements of an adapter by name: the shared ones, translated, and its own."""
    shared, own = read_folder(SHARED), read_folder(package)
    if twice := shared.keys() & own.keys():
        raise ValueError(f"queries that are shared and defined for {package} too: {', '.join(sorted(twice))}")
    return {name: translate(text) for name, text in shared.items()} | own


def read_folder(package: str) -> dict[str, str]:
    """Return the statements in the `queries` folder of a package, as they are written."""
    found: dict[str, str] = {}
    for file in sorted(_folder(package, "queries").iterdir()):
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"two queries are called {name}")
            found[name] = text.strip().rstrip(";")
    return found


def _folder(package: str, name: str) -> Path:
    """Return a folder of a package. `importlib.resources` would import archive formats: a megabyte of every gateway."""
    return Path(import_module(package).__path__[0], name)


def read_migrations(package: str) -> list[tuple[int, str]]:
    """Return the number and text of every migration, in order."""
    folder = _folder(package, "migrations")
    found = sorted((int(entry.name[:4]), entry.read_text(encoding="utf-8")) for entry in folder.iterdir())
    if [number for number, _ in found] != list(range(1, len(found) + 1)):
        raise ValueError("the migrations are not numbered 1, 2, 3, ...")
    return found
