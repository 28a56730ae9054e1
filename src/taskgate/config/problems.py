"""A configuration as it was written, where everything remembers its place, and what is wrong with it at which place."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from collections.abc import Mapping as AbstractMapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

_ALIKE_ENOUGH = 70


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; line and column count from 1, and line 0 means that only the file is known."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where it is, which key it concerns, what is wrong, and what would be right."""

    file: str
    line: int
    column: int
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        what = f"{self.message}; {self.hint}" if self.hint else self.message
        place = Mark(self.file, self.line, self.column)
        return f"{place}: {self.key}: {what}" if self.key else f"{place}: {what}"


def problem_at(mark: Mark, key: str, message: str, hint: str = "") -> Problem:
    """A problem whose place is a mark."""
    return Problem(mark.file, mark.line, mark.column, key, message, hint)


class ConfigError(Exception):
    """The configuration cannot be used; `problems` holds every reason, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(set(problems), key=lambda p: (p.file, p.line, p.column, p.key, p.message))
        super().__init__("\n".join(str(p) for p in self.problems))


class ReferenceFailed(Exception):
    """What a reference to a secret stands for cannot be had. Neither the reason nor the cure holds a value."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean "x"?` when one of the known words is close to the given one, else the empty string."""
    # Imported when needed: most configurations are right, and the import costs as much as reading one.
    from rapidfuzz import fuzz, process

    best = process.extractOne(word[:100].lower(), list(known), scorer=fuzz.ratio, score_cutoff=_ALIKE_ENOUGH)
    return f'did you mean "{best[0]}"?' if best else ""


def one_of(words: Iterable[str], limit: int = 12) -> str:
    """A readable list of what is allowed, cut where it would become a wall of text."""
    all_words = list(words)
    shown = ", ".join(all_words[:limit])
    return f"{shown}, and {len(all_words) - limit} more" if len(all_words) > limit else shown


# A configuration as it was written: maps, lists and scalars that remember their place.
#
# Scalars are kept as the text that stood in the file, because only the key that reads them knows whether `off`, `1.10`
# or `007` is a word, a number or a switch. Moving a branch (pasted server blocks, overlays) keeps its places. Built by
# `document`, reshaped by `variables`, `overlays` and the normalisers, read by `validation`; it holds no rules of its
# own.
#
# What keys a section has, seen from outside: for suggestions in messages and for the reference in the documents.

_NOWHERE = Mark("configuration")


@dataclass(frozen=True, slots=True)
class Scalar:
    """One word, number, switch or nothing (`text` is None). `secret` marks text that came out of a variable."""

    text: str | None
    mark: Mark
    secret: bool = False
    size: int = 1


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list."""

    items: tuple[Node, ...]
    mark: Mark
    size: int = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a map with the place of the key itself."""

    key: str
    key_mark: Mark
    value: Node


@dataclass(frozen=True, slots=True)
class Mapping:
    """A map; the keys keep the order of the file."""

    entries: dict[str, Entry] = field(default_factory=dict)
    mark: Mark = _NOWHERE
    size: int = 1

    def get(self, key: str) -> Node | None:
        entry = self.entries.get(key)
        return entry.value if entry else None

    def text(self, key: str) -> str | None:
        return text_of(self.get(key))

    def map(self, key: str) -> Mapping:
        """The map under a key; an empty one when there is none."""
        value = self.get(key)
        return value if isinstance(value, Mapping) else Mapping({}, self.mark)

    def list(self, key: str) -> tuple[Node, ...]:
        value = self.get(key)
        return value.items if isinstance(value, Sequence) else ()

    def with_entries(self, *changed: Entry) -> Mapping:
        """A copy with these entries put in or replaced."""
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
    """A key with no value after it."""
    return isinstance(node, Scalar) and node.text is None


def plain(node: Node) -> Any:
    """The tree as ordinary dictionaries, lists and texts."""
    match node:
        case Scalar():
            return node.text
        case Sequence():
            return [plain(item) for item in node.items]
        case Mapping():
            return {entry.key: plain(entry.value) for entry in node}


def from_plain(value: Any, mark: Mark) -> Node:
    """The opposite of `plain`, for values that have no place of their own."""
    if isinstance(value, dict):
        return Mapping({str(k): Entry(str(k), mark, from_plain(v, mark)) for k, v in value.items()}, mark)
    if isinstance(value, (list, tuple)):
        return Sequence(tuple(from_plain(item, mark) for item in value), mark)
    return Scalar(scalar_text(value), mark)


def scalar_text(value: Any) -> str | None:
    """The text of a scalar that a parser has already given a type."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def at(node: Node, path: KeyPath) -> tuple[Mark, Node | None]:
    """The place a path leads to: of the key when the last step is one, and of the last known step when the path goes
    beyond.

    A step that names no key is passed over when later steps still fit: validators put the name of a chosen variant
    into paths.
    """
    mark = node.mark
    here: Node | None = node
    for step in path:
        if isinstance(here, Mapping) and isinstance(step, str) and step in here.entries:
            mark, here = here.entries[step].key_mark, here.entries[step].value
        elif isinstance(here, Sequence) and isinstance(step, int) and 0 <= step < len(here.items):
            here = here.items[step]
            mark = here.mark
        elif not isinstance(here, Mapping):
            return mark, None
    return mark, here


def key_name(path: KeyPath) -> str:
    """`governance.rules[2].match`"""
    name = ""
    for step in path:
        name += f"[{step}]" if isinstance(step, int) else (f".{step}" if name else step)
    return name


Step = str | int


def key_of(name: str, model: type[BaseModel]) -> str:
    """The key that stands in the file for an attribute."""
    return model.model_fields[name].alias or name


def keys_of(model: type[BaseModel]) -> list[str]:
    """Every key of a section."""
    return [key_of(name, model) for name, field in model.model_fields.items() if not field.exclude]


def keys_at(model: type[BaseModel], path: tuple[Step, ...]) -> list[str]:
    """The keys that are known where a path of the validator leads."""
    here: Any = model
    for step in path:
        here = _step(bare(here), step)
    found = bare(here)
    return keys_of(found) if is_section(found) else []


def meaning_at(model: type[BaseModel], path: tuple[Step, ...]) -> str:
    """The sentence that describes the key a path of the validator leads to."""
    here: Any = model
    for step in path[:-1]:
        here = _step(bare(here), step)
    owner = bare(here)
    fields = owner.model_fields.items() if is_section(owner) else ()
    return next((field.description or "" for name, field in fields if path[-1] in (name, field.alias)), "")


def bare(annotation: Any) -> Any:
    """An annotation without `Annotated` and without `| None`."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
            continue
        if get_origin(annotation) in (Union, types.UnionType):
            some = [a for a in get_args(annotation) if a is not type(None)]
            if len(some) == 1:
                annotation = some[0]
                continue
        return annotation


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def variants(annotation: Any) -> list[type[BaseModel]]:
    """The sections a union chooses between, or none."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [a for a in get_args(annotation) if is_section(a)]
    return []


def inner(annotation: Any) -> Any:
    """What a list or a map holds; None for anything else."""
    origin = get_origin(annotation)
    if origin in (tuple, list):
        return get_args(annotation)[0]
    if origin is dict or (isinstance(origin, type) and issubclass(origin, AbstractMapping)):
        return get_args(annotation)[1]
    return None


def words_of(annotation: Any) -> list[str]:
    """The words a closed choice allows."""
    return [str(word) for word in get_args(annotation)] if get_origin(annotation) is Literal else []


def _step(annotation: Any, step: Step) -> Any:
    if is_section(annotation):
        for name, field in annotation.model_fields.items():
            if step in (name, field.alias):
                return field.annotation
        return None
    for variant in variants(annotation):
        if step == variant.model_fields["type"].default:
            return variant
    return inner(annotation)
