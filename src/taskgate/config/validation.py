"""Validate a configuration tree against a section, and turn pydantic errors into problems with positions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from taskgate.config.introspection import keys_at, meaning_at
from taskgate.config.model.durations import format_duration
from taskgate.config.problems import Problem, did_you_mean, one_of, problem_at
from taskgate.config.tree import KeyPath, Mapping, Node, Scalar, Sequence, at, key_name

Kind = TypeVar("Kind", bound=BaseModel)
_EXPECTED = {
    "string_type": "must be text",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a number",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a map of keys",
    "model_type": "must be a map of keys",
    "model_attributes_type": "must be a map of keys",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least"),
    "greater_than": ("gt", "must be more than"),
    "less_than_equal": ("le", "must be at most"),
    "less_than": ("lt", "must be less than"),
}


def validated(model: type[Kind], tree: Mapping, prefix: KeyPath = ()) -> tuple[Kind | None, list[Problem]]:
    """Return the validated section, or None and all problems. `prefix` is the position of the tree in the file."""
    try:
        return model.model_validate(present(tree)), []
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        problems = (_problem(model, tree, dict(item), prefix) for item in found)
        return None, [problem for problem in problems if problem is not None]


def present(node: Node) -> Any:
    """Convert the tree to plain values without empty keys: `rules:` without a value means no rules."""
    if isinstance(node, Mapping):
        values = {entry.key: present(entry.value) for entry in node}
        return {key: value for key, value in values.items() if value is not None}
    if isinstance(node, Sequence):
        return [present(item) for item in node.items]
    return node.text


def _problem(model: type[BaseModel], tree: Mapping, error: dict[str, Any], prefix: KeyPath) -> Problem | None:
    kind: str = error["type"]
    raw: KeyPath = tuple(error["loc"])
    path = _walked(tree, raw, keep_last=kind == "missing")
    mark, node = at(tree, path)
    key = key_name((*prefix, *path))
    if kind == "extra_forbidden":
        return problem_at(mark, key, "unknown key", _suggestion(model, raw, str(path[-1])))
    if kind == "missing":
        return problem_at(mark, key, "required key is missing", f"add it: {meaning_at(model, raw)}")
    if kind == "too_short" and isinstance(node, Sequence) and node.items:
        # Pydantic counts only the valid items; each invalid one already has its own problem.
        return None
    if kind == "value_error":
        message, _, hint = str(error["ctx"]["error"]).partition("; ")
        return problem_at(mark, key, message, hint)
    message, hint = _sentence(kind, error, node)
    return problem_at(mark, key, message, hint)


def _walked(tree: Mapping, raw: KeyPath, *, keep_last: bool) -> KeyPath:
    """Remove the steps that only pydantic adds to a path (names of variants, `[key]`)."""
    path: list[str | int] = []
    here: Node | None = tree
    for position, step in enumerate(raw):
        if isinstance(here, Mapping) and isinstance(step, str) and step in here.entries:
            here = here.entries[step].value
        elif isinstance(here, Sequence) and isinstance(step, int) and step < len(here.items):
            here = here.items[step]
        elif not (keep_last and position == len(raw) - 1):
            continue
        path.append(step)
    return tuple(path)


def _suggestion(model: type[BaseModel], raw: KeyPath, key: str) -> str:
    known = keys_at(model, raw[:-1])
    return did_you_mean(key, known) or f"known keys: {one_of(known, 40)}"


def _sentence(kind: str, error: dict[str, Any], node: Node | None) -> tuple[str, str]:
    word = node.get("type") if kind == "union_tag_invalid" and isinstance(node, Mapping) else node
    given = word.text if isinstance(word, Scalar) and not word.secret else None
    context = error.get("ctx", {})
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        bound = context[name]
        return f"{words} {format_duration(bound) if isinstance(bound, timedelta) else bound}", ""
    if kind in ("literal_error", "union_tag_invalid"):
        expected = str(context.get("expected") or context.get("expected_tags"))
        words_allowed = [word.strip(" '") for word in expected.replace(" or ", ", ").split(",")]
        shown = f'"{given[:60]}" is not one of' if given is not None else "must be one of"
        return f"{shown} {one_of(words_allowed)}", did_you_mean(given, words_allowed) if given else ""
    if kind == "union_tag_not_found":
        return "has no type", "write inbox, or a map with `type`, for example type: webhook"
    if kind in _EXPECTED:
        return _EXPECTED[kind], "" if "short" in kind else _actual(node)
    return str(error["msg"])[:200], ""


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
