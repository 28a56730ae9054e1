"""A parsed configuration file: maps, lists and scalars with their positions.

Scalars keep the text of the file, because only the key decides whether `off`, `1.10` or `007` is a word, a number or a
boolean. Moving a branch (pasted server blocks, overlays) keeps its positions. Built by `document`, rewritten by
`environments`, `variables` and the `*_forms` modules, and read by `validation`. A file with thousands of rules has a hundred
thousand of these values, so they are structs, which are created in a tenth of the time of a dataclass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from taskgate.config.problems import Mark

_NOWHERE = Mark("configuration")


class Scalar(msgspec.Struct, frozen=True, gc=False):
    """A single value; `text` is None for an empty one. `secret` marks text that was expanded from a variable."""

    text: str | None
    mark: Mark
    secret: bool = False
    size: int = 1


class Sequence(msgspec.Struct, frozen=True, gc=False):
    """A list."""

    items: tuple[Node, ...]
    mark: Mark
    size: int = 1


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One key of a map, with the position of the key."""

    key: str
    key_mark: Mark
    value: Node


class Mapping(msgspec.Struct, frozen=True, gc=False):
    """A map; the keys keep the order of the file."""

    entries: dict[str, Entry] = msgspec.field(default_factory=dict)
    mark: Mark = _NOWHERE
    size: int = 1

    def get(self, key: str) -> Node | None:
        entry = self.entries.get(key)
        return entry.value if entry else None

    def text(self, key: str) -> str | None:
        return text_of(self.get(key))

    def map(self, key: str) -> Mapping:
        """Return the map at a key, or an empty one."""
        value = self.get(key)
        return value if isinstance(value, Mapping) else Mapping({}, self.mark)

    def list(self, key: str) -> tuple[Node, ...]:
        value = self.get(key)
        return value.items if isinstance(value, Sequence) else ()

    def with_entries(self, *changed: Entry) -> Mapping:
        """Return a copy with these entries added or replaced."""
        return replace(self, entries={**self.entries, **{entry.key: entry for entry in changed}})

    def with_value(self, key: str, value: Node, key_mark: Mark | None = None) -> Mapping:
        known = self.entries.get(key)
        return self.with_entries(Entry(key, key_mark or (known.key_mark if known else value.mark), value))

    def without(self, *keys: str) -> Mapping:
        return replace(self, entries={k: e for k, e in self.entries.items() if k not in keys})

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())


Node = Scalar | Sequence | Mapping
KeyPath = tuple[str | int, ...]


def text_of(node: Node | None) -> str | None:
    return node.text if isinstance(node, Scalar) else None


def is_nothing(node: Node) -> bool:
    """Whether a key has no value."""
    return isinstance(node, Scalar) and node.text is None


def plain(node: Node) -> Any:
    """Convert the tree to dictionaries, lists and strings."""
    match node:
        case Scalar():
            return node.text
        case Sequence():
            return [plain(item) for item in node.items]
        case Mapping():
            return {entry.key: plain(entry.value) for entry in node}


def from_plain(value: Any, mark: Mark) -> Node:
    """Convert plain values to a tree in which every node has the same position."""
    if isinstance(value, dict):
        return Mapping({str(k): Entry(str(k), mark, from_plain(v, mark)) for k, v in value.items()}, mark)
    if isinstance(value, (list, tuple)):
        return Sequence(tuple(from_plain(item, mark) for item in value), mark)
    return Scalar(scalar_text(value), mark)


def scalar_text(value: Any) -> str | None:
    """Return the text of a scalar that a parser has already converted to a type."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def at(node: Node, path: KeyPath) -> tuple[Mark, Node | None]:
    """Return the position and node at a path; the last known position if the path goes beyond the tree."""
    mark = node.mark
    here: Node | None = node
    for step in path:
        if isinstance(here, Mapping) and isinstance(step, str) and step in here.entries:
            mark, here = here.entries[step].key_mark, here.entries[step].value
        elif isinstance(here, Sequence) and isinstance(step, int) and 0 <= step < len(here.items):
            here = here.items[step]
            mark = here.mark
        else:
            return mark, None
    return mark, here


def key_name(path: KeyPath) -> str:
    """Format a path, for example `governance.rules[2].match`."""
    name = ""
    for step in path:
        name += f"[{step}]" if isinstance(step, int) else (f".{step}" if name else step)
    return name
