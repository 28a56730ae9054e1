"""Validate a configuration tree against a section, and turn its faults into problems with positions."""

from __future__ import annotations

from typing import Any, TypeVar

from taskgate.config.introspection import keys_of, meaning_of
from taskgate.config.problems import Problem, did_you_mean, one_of, problem_at
from taskgate.config.sections import Fault, Invalid, Section
from taskgate.config.tree import KeyPath, Mapping, Node, Scalar, Sequence, at, key_name

Kind = TypeVar("Kind", bound=Section)


def validated(model: type[Kind], tree: Mapping, prefix: KeyPath = ()) -> tuple[Kind | None, list[Problem]]:
    """Return the validated section, or None and all problems. `prefix` is the position of the tree in the file."""
    try:
        return model.model_validate(present(tree)), []
    except Invalid as invalid:
        return None, [_problem(tree, fault, prefix) for fault in invalid.faults]


def present(node: Node) -> Any:
    """Convert the tree to plain values without empty keys: `rules:` without a value means no rules."""
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, Sequence):
        return [present(item) for item in node.items]
    values = {}
    for key, entry in node.entries.items():
        item = entry.value
        value = item.text if isinstance(item, Scalar) else present(item)
        if value is not None:
            values[key] = value
    return values


def _problem(tree: Mapping, fault: Fault, prefix: KeyPath) -> Problem:
    path = _in_file(tree, fault.path, keep_last=fault.kind == "missing")
    mark, node = at(tree, path)
    message, hint = _sentence(fault, node)
    return problem_at(mark, key_name((*prefix, *path)), message, hint)


def _in_file(tree: Mapping, found: KeyPath, *, keep_last: bool) -> KeyPath:
    """Remove the steps that the file does not have: a single text may replace a list, or a map with one key."""
    path: list[str | int] = []
    here: Node | None = tree
    for position, step in enumerate(found):
        if isinstance(here, Mapping) and isinstance(step, str) and step in here.entries:
            here = here.entries[step].value
        elif isinstance(here, Sequence) and isinstance(step, int) and step < len(here.items):
            here = here.items[step]
        elif not (keep_last and position == len(found) - 1):
            continue
        path.append(step)
    return tuple(path)


def _sentence(fault: Fault, node: Node | None) -> tuple[str, str]:
    """Return what is wrong and how to correct it."""
    match fault.kind:
        case "unknown":
            known, key = keys_of(fault.section or Section), str(fault.path[-1])
            return fault.message, did_you_mean(key, known) or f"known keys: {one_of(known, 40)}"
        case "missing":
            return fault.message, f"add it: {meaning_of(str(fault.path[-1]), fault.section or Section)}"
        case "value":
            message, _, hint = fault.message.partition("; ")
            return message, hint
        case "word":
            return _not_one_of(fault.words, node)
        case "variant":
            return _not_one_of(fault.words, node.get("type") if isinstance(node, Mapping) else node)
        case "no variant":
            return fault.message, "write inbox, or a map with `type`, for example type: webhook"
        case "type":
            return fault.message, _actual(node)
        case _:
            return fault.message, ""


def _not_one_of(words: tuple[str, ...], word: Node | None) -> tuple[str, str]:
    given = word.text if isinstance(word, Scalar) and not word.secret else None
    shown = f'"{given[:60]}" is not one of' if given is not None else "must be one of"
    return f"{shown} {one_of(words)}", did_you_mean(given, words) if given else ""


def _actual(node: Node | None) -> str:
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
