"""Loads the SQL of an adapter from the `.sql` files in its folder: statements by name, and migrations by number."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def read_queries(package: str) -> dict[str, str]:
    found: dict[str, str] = {}
    folder = files(package).joinpath("queries")
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"two queries are called {name}")
            found[name] = text.strip().rstrip(";")
    return found


def read_migrations(package: str) -> list[tuple[int, str]]:
    """Number and text of every migration, in order."""
    folder = files(package).joinpath("migrations")
    found = sorted((int(entry.name[:4]), entry.read_text(encoding="utf-8")) for entry in folder.iterdir())
    if [number for number, _ in found] != list(range(1, len(found) + 1)):
        raise ValueError("the migrations are not numbered 1, 2, 3, ...")
    return found
