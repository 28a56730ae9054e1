"""Parse YAML to a tree with positions.

Size, depth and number of nodes are limited (an alias counts as often as it is used), and the text is read as a stream of
events, so nesting costs no stack. Duplicate keys are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from taskgate.config.problems import ConfigError, Mark, Problem, problem_at
from taskgate.config.tree import Entry, Mapping, Node, Scalar, Sequence

MAX_DEPTH = 64
MAX_NODES = 100_000
MAX_KEY = 512
_NOTHING = frozenset({"", "~", "null", "Null", "NULL"})
_QUOTED = frozenset("'\"|>")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Open:
    """A map or list whose end event has not been read."""

    __slots__ = ("anchor", "entries", "is_map", "items", "key", "key_mark", "mark", "merges", "size")

    def __init__(self, is_map: bool, mark: Mark, anchor: str | None) -> None:
        self.is_map = is_map
        self.mark = mark
        self.anchor = anchor
        self.entries: dict[str, Entry] = {}
        self.items: list[Node] = []
        self.key: str | None = None
        self.key_mark = mark
        self.merges: list[tuple[Mark, Node]] | None = None
        self.size = 1

    def close(self) -> Node:
        if not self.is_map:
            return Sequence(tuple(self.items), self.mark, self.size)
        entries = self.entries if self.merges is None else _merged(self.entries, self.merges)
        return Mapping(entries, self.mark, self.size)

    def add(self, node: Node) -> None:
        self.size += node.size
        key = self.key
        if key is None:
            self.items.append(node)
            return
        self.key = None
        if key == "<<":
            self.merges = [*(self.merges or ()), (self.key_mark, node)]
        else:
            self.entries[key] = Entry(key, self.key_mark, node)


def read_yaml(text: str, name: str) -> Node | None:
    try:
        loader = _Loader(text)
        try:
            return _Builder(name).build(loader.get_event)
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        raise ConfigError([_unreadable_character(text, name, error)]) from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_yaml_problem(text, name, error)]) from None
    except yaml.YAMLError as error:
        raise ConfigError(
            [Problem(file=name, line=0, column=0, key="", message=f"not readable as YAML ({str(error)[:200]})")]
        ) from None


class _Builder:
    """Builds a tree from the stream of YAML events, without recursion."""

    __slots__ = ("_anchors", "_documents", "_name", "_root", "_size", "_stack")

    def __init__(self, name: str) -> None:
        self._name = name
        self._stack: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._size = 0
        self._root: Node | None = None
        self._documents = 0

    def build(self, next_event: Callable[[], Any]) -> Node | None:
        name, stack = self._name, self._stack
        # Read once, because this runs for every node of a file, and there may be ten thousand.
        scalar, end = yaml.ScalarEvent, yaml.StreamEndEvent
        map_start, map_end = yaml.MappingStartEvent, yaml.MappingEndEvent
        list_start, list_end = yaml.SequenceStartEvent, yaml.SequenceEndEvent
        kind: Any = None
        while kind is not end:
            event = next_event()
            kind = type(event)
            if kind is scalar:
                at = event.start_mark
                mark, value = Mark(name, at.line + 1, at.column + 1), event.value
                if stack and (top := stack[-1]).is_map and top.key is None:
                    self._key(top, value, mark)
                    continue
                if value in _NOTHING and event.style not in _QUOTED:
                    value = None
                self._place(Scalar(value, mark), event.anchor)
            elif kind is map_start or kind is list_start:
                self._open(event, is_map=kind is map_start)
            elif kind is map_end or kind is list_end:
                done = stack.pop()
                self._place(done.close(), done.anchor)
            elif kind is yaml.AliasEvent:
                self._alias(event)
            elif kind is yaml.DocumentStartEvent:
                self._documents += 1
                if self._documents > 1:
                    hint = "keep one document, without `---`"
                    raise self._error(self._mark(event), "a second document begins here", hint)
        return self._root

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

    def _key(self, top: _Open, key: str, mark: Mark) -> None:
        if len(key) > MAX_KEY:
            raise self._error(mark, f"a key is longer than {MAX_KEY} characters")
        if key in top.entries:
            first = top.entries[key].key_mark
            raise ConfigError(
                [problem_at(mark, key, f"duplicate key (first in line {first.line})", "remove one of the two")]
            )
        top.key, top.key_mark = key, mark

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
        self._size += 1
        if self._size > MAX_NODES or node.size > MAX_NODES:
            raise self._error(
                node.mark, f"more than {MAX_NODES} values (aliases count in full)", "split the file or remove aliases"
            )
        if anchor is not None:
            self._anchors[anchor] = node
        if self._stack:
            self._stack[-1].add(node)
        else:
            self._root = node


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
        file=name,
        line=line,
        column=column,
        key="",
        message="contains a control character; this does not look like a text file",
        hint="save it as plain UTF-8 text",
    )
