"""Convert a configuration tree to a section, and report every fault with its position.

`msgspec.convert` stops at the first fault. This conversion follows the annotations of the sections through the tree, leaves ranges
to `msgspec`, and collects the faults. The annotations of a section are evaluated when a file first contains it.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from taskgate.config.problems import Mark, Problem, did_you_mean, one_of, problem_at
from taskgate.config.tree import KeyPath, Mapping, Node, Scalar, Sequence, is_nothing, key_name, plain
from taskgate.core.settings.durations import format_duration
from taskgate.core.settings.section import DURATION, Section, keys_of, members, taken_apart
from taskgate.mcp.json_errors import UNDECODABLE

SectionType = TypeVar("SectionType", bound=Section)
_TRUTH: Final = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}
_BOUNDS: Final = {">=": "must be at least", ">": "must be more than", "<=": "must be at most", "<": "must be less than"}


def validated(
    section: type[SectionType], tree: Mapping, prefix: KeyPath = ()
) -> tuple[SectionType | None, list[Problem]]:
    """Return the section, or None and all problems. `prefix` is the position of the tree in the file."""
    problems = list[Problem]()
    return _section(section, tree, _Place(prefix, tree.mark, problems)), problems


class _Place(NamedTuple):
    """The position of a value in the file, and the problems of the file."""

    path: KeyPath
    mark: Mark
    problems: list[Problem]

    def below(self, step: str | int, mark: Mark) -> _Place:
        return _Place((*self.path, step), mark, self.problems)

    def fault(self, message: str, hint: str = "") -> None:
        self.problems.append(problem_at(self.mark, key_name(self.path), message, hint))

    def called(self, function: Callable[..., Any], *arguments: Any, **values: Any) -> Any:
        """Call a function. A ValueError of it is a fault here; its text may have a correction after `; `."""
        try:
            return function(*arguments, **values)
        except ValueError as error:
            message, _, hint = str(error).partition("; ")
            return self.fault(message, hint)


_Reader = Callable[[Node, _Place], Any]
"""Returns the value of a node, or adds problems and returns None."""


@cache
def _readers(section: type[Section]) -> dict[str, tuple[str, _Reader]]:
    """Return name and reader for each key. A name is also accepted as a key: `validate_arguments` for `validate`."""
    readers = [(each, _reader(each.type, each.attached)) for each in members(section)]
    return {key: (each.name, read) for each, read in readers for key in (each.name, each.key)}


def _item_reader(annotation: Any) -> _Reader:
    return _reader(*taken_apart(annotation))


def _reader(kind: Any, attached: tuple[Meta, ...]) -> _Reader:
    if any("plain" in (meta.extra or ()) for meta in attached):
        return lambda node, place: plain(node)
    origin, arguments = get_origin(kind), get_args(kind)
    limits = _Limits(origin or kind, attached)
    if origin is tuple:
        return partial(_list, limits, _item_reader(arguments[0]))
    if origin is dict:
        return partial(_map, limits, _item_reader(arguments[0]), _item_reader(arguments[1]))
    if origin in (Union, types.UnionType):
        return partial(_variant, {str(each.__struct_config__.tag): each for each in arguments})
    if origin is Literal:
        return partial(_word, limits, {each: each for each in arguments})
    if issubclass(kind, Enum):
        return partial(_word, limits, {each.value: each for each in kind})
    return partial(_section, kind) if issubclass(kind, Section) else partial(_scalar, limits)


class _Limits(NamedTuple):
    """A type, and the functions and ranges that are attached to it."""

    type: Any
    attached: tuple[Meta, ...]

    def read(self, value: Any, place: _Place) -> Any:
        """Apply the functions; None after a fault, and where a function returns it."""
        for meta in self.attached:
            if value is not None and meta.extra is not None and "read" in meta.extra:
                value = place.called(meta.extra["read"], value)
        return value

    def checked(self, value: Any, place: _Place) -> Any:
        """Return a value of the type if it is within the ranges."""
        try:
            if value is not None and self.attached:
                msgspec.convert(value, Annotated[(self.type, *self.attached)])
        except UNDECODABLE as error:
            return place.fault(self._out_of_range(str(error)))
        return value

    def _out_of_range(self, text: str) -> str:
        if " length " in text:
            return "must not be empty"
        bound = re.search(r" ([<>]=?) (\S+)\Z", text)
        if bound is None:
            return text.replace("Expected `str` matching regex", "does not match the pattern")
        is_duration = any(meta.extra_json_schema == DURATION for meta in self.attached)
        return f"{_BOUNDS[bound[1]]} {format_duration(float(bound[2])) if is_duration else bound[2]}"


def _section(section: type[SectionType], node: Node, place: _Place) -> SectionType | None:
    if not isinstance(node, Mapping):
        return place.fault("must be a map of keys", _actual(node))
    before, readers = len(place.problems), _readers(section)
    values = dict[str, Any]()
    for key, entry in node.entries.items():
        if is_nothing(entry.value) or key == section.__struct_config__.tag_field:
            continue
        where = place.below(key, entry.key_mark)
        name, read = readers.get(key, ("", None))
        if read is None or name in values:
            known = keys_of(section)
            where.fault("unknown key", did_you_mean(key, known) or f"known keys: {one_of(known, 40)}")
        else:
            values[name] = read(entry.value, where)
    for each in members(section):
        if each.required and each.name not in values:
            mark = node.entries[each.key].key_mark if each.key in node.entries else place.mark
            place.below(each.key, mark).fault("required key is missing", f"add it: {each.description}")
    return None if len(place.problems) > before else place.called(section, **values)


def _variant(variants: dict[str, type[Section]], node: Node, place: _Place) -> Section | None:
    if not isinstance(node, Mapping):
        return place.fault("must be a map of keys", _actual(node))
    if "type" not in node.entries:
        return place.fault("has no type", "write inbox, or a map with `type`, for example type: webhook")
    section = variants.get(node.text("type") or "")
    return place.fault(*_not_one_of(variants, node.get("type"))) if section is None else _section(section, node, place)


def _list(limits: _Limits, read: _Reader, node: Node, place: _Place) -> tuple[Any, ...] | None:
    may_be_one = any("one" in (meta.extra or ()) for meta in limits.attached)
    if isinstance(node, Sequence):
        items = [(item, place.below(number, item.mark)) for number, item in enumerate(node.items)]
    elif may_be_one and isinstance(node, Scalar):
        items = [(node, place)]
    else:
        return place.fault("must be a list", _actual(node))
    before = len(place.problems)
    values = tuple(read(item, where) for item, where in items)
    return None if len(place.problems) > before else limits.checked(limits.read(values, place), place)


def _map(limits: _Limits, read_key: _Reader, read: _Reader, node: Node, place: _Place) -> dict[Any, Any] | None:
    if not isinstance(node, Mapping):
        return place.fault("must be a map of keys", _actual(node))
    before, values = len(place.problems), dict[Any, Any]()
    for key, entry in node.entries.items():
        where = place.below(key, entry.key_mark)
        if not is_nothing(entry.value):
            name = read_key(Scalar(key, entry.key_mark), where)
            values[name] = read(entry.value, where)
    return None if len(place.problems) > before else limits.checked(limits.read(values, place), place)


def _word(limits: _Limits, words: dict[Any, Any], node: Node, place: _Place) -> Any:
    before = len(place.problems)
    value = limits.read(node.text if isinstance(node, Scalar) else None, place)
    if value not in words and len(place.problems) == before:
        place.fault(*_not_one_of(map(str, words), node))
    return words.get(value)


def _scalar(limits: _Limits, node: Node, place: _Place) -> Any:
    convert, message = _FROM_TEXT.get(limits.type, (None, "must be a single value"))
    if not isinstance(node, Scalar) or node.text is None:
        return place.fault(message, _actual(node))
    value = limits.read(node.text, place)
    if isinstance(value, str) and convert is not None:
        value = convert(value)
        if value is None:
            return place.fault(message, _actual(node))
    return limits.checked(value, place)


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\s*[-+]?\d{1,18}(_\d{1,18})*\s*", text, re.ASCII) else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value else None


_FROM_TEXT: Final[dict[Any, tuple[Callable[[str], Any], str]]] = {
    str: (str, "must be text"),
    bool: (lambda text: _TRUTH.get(text.lower()), "must be true or false"),
    int: (_whole, "must be a whole number"),
    float: (_number, "must be a number"),
    types.NoneType: (lambda text: None, "must not be set"),
}
"""For each type: converts a text, or returns None; and what a value must be."""


def _not_one_of(words: Iterable[str], word: Node | None) -> tuple[str, str]:
    known, given = list(words), word.text if isinstance(word, Scalar) and not word.secret else None
    shown = f'"{given[:60]}" is not one of' if given is not None else "must be one of"
    return f"{shown} {one_of(known)}", did_you_mean(given, known) if given else ""


def _actual(node: Node) -> str:
    match node:
        case Mapping():
            return "found a map"
        case Sequence():
            return "found a list"
        case Scalar(text=None):
            return "found no value"
        case Scalar(secret=False, text=str(text)) if len(text) <= 60:
            return f'found "{text}"'
        case _:
            return ""
