"""Reads the list of mutants and finds the line that each of them changes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIST = HERE / "mutants.yaml"
LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
LEFT_OUT_MARK = "long"
"""Tests with this mark are not run on mutants; those that start a program or a database are."""


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    before: str
    after: str
    tests: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Place:
    file: Path
    line: int
    """Counted from zero."""


class NotFound(Exception):
    """The line of a mutant is missing, or occurs more than once."""


@cache
def mutants() -> tuple[Mutant, ...]:
    rows = yaml.load(LIST.read_text(), LOADER)
    return tuple(Mutant(row["name"], row["before"], row["after"], tuple(row["tests"]), row["why"]) for row in rows)


class Source:
    """The lines of every source file below a tree, by their text without indentation."""

    def __init__(self, root: Path) -> None:
        self._places: dict[str, list[Place]] = {}
        for file in sorted(path for ending in ("*.py", "*.sql", "*.js") for path in (root / "src").rglob(ending)):
            for number, line in enumerate(file.read_text().splitlines()):
                self._places.setdefault(line.strip(), []).append(Place(file, number))

    def find(self, mutant: Mutant) -> Place:
        places = self._places.get(mutant.before, [])
        if len(places) == 1:
            return places[0]
        stands = f"stands {len(places)} times" if places else "is gone"
        where = "".join(f"\n    {place.file}:{place.line + 1}" for place in places)
        raise NotFound(
            f"mutant {mutant.name!r}: its line {stands}: {mutant.before!r}{where}\n"
            f"  Write in {LIST.relative_to(ROOT)} what the guard reads now ({mutant.why})."
        )


def mutated(text: str, mutant: Mutant, line: int) -> str:
    lines = text.splitlines(keepends=True)
    old = lines[line]
    lines[line] = old[: len(old) - len(old.lstrip())] + mutant.after + "\n"
    return "".join(lines)
