"""Parse YAML to a tree with positions.

Size, depth and number of nodes are limited (an alias counts as often as it is used), and the text is read as a stream of
events, so nesting costs no stack. Duplicate keys are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

import yaml

from taskgate.config.problems import ConfigError, Mark, Problem, problem_at
from taskgate.config.tree import Entry, Mapping, Node, Scalar, Sequence
from taskgate.lazy_dataclass import dataclass

MAX_DEPTH = 64
MAX_NODES = 100_000
MAX_KEY = 512
_NOTHING = {"", "~", "null", "Null", "NULL"}
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class _Open:
    """A map or list whose end event has not been read."""

    is_map: bool
    mark: Mark
    anchor: str | None
    entries: dict[str, Entry] = field(default_factory=dict)
    items: list[Node] = field(default_factory=list)
    key: tuple[str, Mark] | None = None
    merges: list[tuple[Mark, Node]] = field(default_factory=list)
    size: int = 1

    def close(self) -> Node:
        if self.is_map:
            return Mapping(_merged(self.entries, self.merges), self.mark, self.size)
        return Sequence(tuple(self.items), self.mark, self.size)


def read_yaml(text: str, name: str) -> Node | None:
    try:
        return _Builder(name).build(yaml.parse(text, Loader=_Loader))
    except yaml.reader.ReaderError as error:
        raise ConfigError([_unreadable_character(text, name, error)]) from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_yaml_problem(text, name, error)]) from None
    except yaml.YAMLError as error:
        raise ConfigError([Problem(name, 0, 0, "", f"not readable as YAML ({str(error)[:200]})")]) from None


@dataclass(slots=True)
class _Builder:
    """Builds a tree from the stream of YAML events, without recursion."""

    _name: str
    _stack: list[_Open] = field(default_factory=list)
    _anchors: dict[str, Node] = field(default_factory=dict)
    _size: int = 0
    _root: Node | None = None
    _documents: int = 0

    def build(self, events: Iterator[Any]) -> Node | None:
        for event in events:
            self._take(event)
        return self._root

    def _take(self, event: Any) -> None:
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self._scalar(event)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            self._open(event, is_map=kind is yaml.MappingStartEvent)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            done = self._stack.pop()
            self._place(done.close(), done.anchor)
        elif kind is yaml.AliasEvent:
            self._alias(event)
        elif kind is yaml.DocumentStartEvent:
            self._documents += 1
            if self._documents > 1:
                raise self._error(
                    self._mark(event), "a second document begins here", "keep one document, without `---`"
                )

    def _mark(self, event: Any) -> Mark:
        return Mark(self._name, event.start_mark.line + 1, event.start_mark.column + 1)

    def _error(self, mark: Mark, message: str, hint: str = "") -> ConfigError:
        return ConfigError([problem_at(mark, "", message, hint)])

    def _open(self, event: Any, *, is_map: bool) -> None:
        mark = self._mark(event)
        if len(self._stack) >= MAX_DEPTH:
            raise self._error(mark, f"nested deeper than {MAX_DEPTH} levels", "flatten this section")
        if self._stack and self._stack[-1].is_map and self._stack[-1].key is None:
            raise self._error(
                mark, "a map or list is used as a key", "use text as the key, in quotes if it begins with { or ["
            )
        self._stack.append(_Open(is_map, mark, event.anchor))

    def _scalar(self, event: Any) -> None:
        mark = self._mark(event)
        quoted = event.style in ("'", '"', "|", ">")
        text: str | None = event.value
        top = self._stack[-1] if self._stack else None
        if top is not None and top.is_map and top.key is None:
            self._key(top, event.value, mark)
            return
        if not quoted and event.value in _NOTHING:
            text = None
        self._place(Scalar(text, mark), event.anchor)

    def _key(self, top: _Open, key: str, mark: Mark) -> None:
        if len(key) > MAX_KEY:
            raise self._error(mark, f"a key is longer than {MAX_KEY} characters")
        if key in top.entries:
            first = top.entries[key].key_mark
            raise ConfigError(
                [problem_at(mark, key, f"duplicate key (first in line {first.line})", "remove one of the two")]
            )
        top.key = (key, mark)

    def _alias(self, event: Any) -> None:
        mark = self._mark(event)
        node = self._anchors.get(event.anchor)
        if node is None:
            raise self._error(mark, f"*{event.anchor} refers to an undefined or unfinished anchor")
        top = self._stack[-1] if self._stack else None
        if top is not None and top.is_map and top.key is None:
            raise self._error(mark, "an alias is used as a key", "write the key itself")
        self._place(node, None)

    def _place(self, node: Node, anchor: str | None) -> None:
        self._count(node)
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._stack:
            self._root = node
            return
        top: _Open = self._stack[-1]
        top.size += node.size
        if not top.is_map:
            top.items.append(node)
            return
        assert top.key is not None
        (key, mark), top.key = top.key, None
        if key == "<<":
            top.merges.append((mark, node))
        else:
            top.entries[key] = Entry(key, mark, node)

    def _count(self, node: Node) -> None:
        self._size += node.size if isinstance(node, Scalar) else 1
        if self._size > MAX_NODES or node.size > MAX_NODES:
            raise self._error(
                node.mark, f"more than {MAX_NODES} values (aliases count in full)", "split the file or remove aliases"
            )


def _merged(entries: dict[str, Entry], merges: list[tuple[Mark, Node]]) -> dict[str, Entry]:
    """Merge as YAML specifies: explicit keys override merged ones, and earlier merged maps override later ones."""
    result = dict(entries)
    for mark, source in merges:
        for part in source.items if isinstance(source, Sequence) else (source,):
            if not isinstance(part, Mapping):
                raise ConfigError([problem_at(mark, "<<", "only a map can be merged", "write <<: *anchor_of_a_map")])
            for entry in part:
                result.setdefault(entry.key, entry)
    return result


def _yaml_problem(text: str, name: str, error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    what = (error.problem or error.context or "not readable")[:200]
    place = Mark(name, mark.line + 1, mark.column + 1) if mark else Mark(name)
    lines = text.splitlines()
    line = lines[place.line - 1] if 0 < place.line <= len(lines) else ""
    return problem_at(place, "", f"not valid YAML: {what}", _yaml_hint(what, line))


def _yaml_hint(what: str, line: str) -> str:
    if "\t" in line:
        return "indent with spaces, not tabs"
    if "mapping values are not allowed" in what:
        return "quote text that contains `: `"
    if "undefined alias" in what:
        return "define it first with &name"
    return "check indentation and quotes in this line and the line above"


def _unreadable_character(text: str, name: str, error: yaml.reader.ReaderError) -> Problem:
    position = error.position if isinstance(error.position, int) else 0
    before = text[:position]
    line = before.count("\n") + 1
    column = position - (before.rfind("\n") + 1) + 1
    return Problem(
        name,
        line,
        column,
        "",
        "contains a control character; this does not look like a text file",
        "save it as plain UTF-8 text",
    )
