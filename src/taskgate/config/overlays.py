"""What is different in one environment, laid over the rest of the file.

Maps are merged key by key; lists and single values replace; an empty value (`key:` or `null`) takes the key away.
`$TASKGATE_ENV` chooses, else the key `environment`. A name that is not there is an error; a file without
`environments` ignores the variable.

Settings that the environment may give directly, whatever the file says.

`TASKGATE_TASK_FORCE_REQUIRED` adds to the file's list instead of replacing it: a variable must not quietly loosen a
safety list.

`${VAR}`, `${VAR:-default}`, `${env:VAR}`, `${ENV:VAR}`, `${file:PATH}`, `${keyring:SERVICE/USER}` and `${command:ARGV}` in the
values of a tree.

`$${` stands for a literal `${`. Keys are never expanded. What an unset variable or a failed reference means is for the caller
to say: inside one server it takes that server out, anywhere else it is an error. Expanded text is marked as secret, so that
no message repeats it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from collections.abc import Mapping as Environment
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

from taskgate.config.problems import (
    ConfigError,
    Entry,
    KeyPath,
    Mapping,
    Mark,
    Node,
    Problem,
    ReferenceFailed,
    Scalar,
    Sequence,
    did_you_mean,
    key_name,
    one_of,
    problem_at,
)

if TYPE_CHECKING:
    from taskgate.config.value_sources import ValueSources

CHOICE = "TASKGATE_ENV"
_NOT_IN_AN_OVERLAY = ("schema", "environment", "environments")


def apply_overlay(root: Mapping, environment: Environment[str, str]) -> tuple[Mapping, str | None]:
    """The root with its environment applied and `environments` taken away, and the name of the environment."""
    entry = root.entries.get("environments")
    base = root.without("environments")
    from_variable = environment.get(CHOICE) or None
    name = from_variable or root.text("environment")
    if entry is None or name is None:
        if entry is None and root.text("environment") is not None:
            mark = root.entries["environment"].key_mark
            raise ConfigError(
                [
                    problem_at(
                        mark, "environment", "there is no `environments` to choose from", "add it or remove this key"
                    )
                ]
            )
        return base, name
    overlays = entry.value
    if not isinstance(overlays, Mapping):
        raise ConfigError(
            [
                problem_at(
                    entry.key_mark, "environments", "must be a map of names", "write environments: {staging: {...}}"
                )
            ]
        )
    chosen = overlays.get(name)
    if chosen is None or not isinstance(chosen, Mapping):
        mark = Mark(f"${CHOICE}") if from_variable else root.entries["environment"].key_mark
        hint = did_you_mean(name, overlays.entries) or f"there are: {one_of(overlays.entries) or 'none'}"
        raise ConfigError([problem_at(mark, "environment", f'"{name}" is not one of the environments', hint)])
    for key in _NOT_IN_AN_OVERLAY:
        if key in chosen.entries:
            raise ConfigError(
                [
                    problem_at(
                        chosen.entries[key].key_mark,
                        f"environments.{name}.{key}",
                        "cannot differ by environment",
                        "remove it here",
                    )
                ]
            )
    return merge(base, chosen), name


def merge(below: Mapping, above: Mapping) -> Mapping:
    """`above` laid over `below`."""
    result = below
    for entry in above:
        known = result.get(entry.key)
        if isinstance(entry.value, Scalar) and entry.value.text is None:
            result = result.without(entry.key)
        elif isinstance(known, Mapping) and isinstance(entry.value, Mapping):
            result = result.with_value(entry.key, merge(known, entry.value), entry.key_mark)
        else:
            result = result.with_entries(entry)
    return result


def branch(root: Mapping, key: str) -> Mapping:
    """The map under a key, made when it is missing, so that something can be laid into it."""
    value: Node | None = root.get(key)
    return value if isinstance(value, Mapping) else Mapping({}, root.mark)


FORCE_REQUIRED = "TASKGATE_TASK_FORCE_REQUIRED"
# variable -> (section, key, factor to the key's unit)
NUMBERS = {
    "TASKGATE_TASK_DEFAULT_TTL_MS": ("tasks", "default_ttl_ms", 1),
    "TASKGATE_TASK_MAX_TTL_MS": ("tasks", "max_ttl_ms", 1),
    "TASKGATE_SYNC_FORWARD_TIMEOUT_SECS": ("tasks", "sync_forward_timeout_ms", 1000),
    "TASKGATE_TOOLS_FETCH_TIMEOUT_MS": ("limits", "tools_fetch_timeout_ms", 1),
    "TASKGATE_TOOLS_MAX_PAGES": ("limits", "tools_max_pages", 1),
}


FORMER_PREFIX = "THOUGHTGATE_"
"""How variables begin that configure ThoughtGate, whose settings this gateway takes under its own prefix."""


def former_variables(environment: Environment[str, str]) -> list[Problem]:
    """A warning for each variable that would be expected to have an effect and has none."""
    found = []
    for variable in sorted(name for name in environment if name.startswith(FORMER_PREFIX)):
        ours = "TASKGATE_" + variable.removeprefix(FORMER_PREFIX)
        hint = f"set {ours} instead" if ours in (*NUMBERS, FORCE_REQUIRED) else "no variable of Taskgate is like it"
        found.append(problem_at(Mark(f"${variable[:80]}"), "", "this variable has no effect", hint))
    return found


def apply_overrides(root: Mapping, environment: Environment[str, str]) -> tuple[Mapping, list[Problem]]:
    """The root with the variables laid over it."""
    problems: list[Problem] = []
    for variable, (section, key, factor) in NUMBERS.items():
        text = environment.get(variable, "").strip()
        if not text:
            continue
        mark = Mark(f"${variable}")
        if not re.fullmatch(r"\d{1,15}", text, re.ASCII) or int(text) == 0:
            problems.append(problem_at(mark, "", f'"{text[:40]}" is not a whole number above 0', "write digits only"))
            continue
        value = Scalar(str(int(text) * factor), mark)
        root = root.with_value(section, branch(root, section).with_value(key, value, mark))
    return _with_force_required(root, environment), problems


def _with_force_required(root: Mapping, environment: Environment[str, str]) -> Mapping:
    words = [word.strip() for word in environment.get(FORCE_REQUIRED, "").split(",") if word.strip()]
    if not words:
        return root
    mark = Mark(f"${FORCE_REQUIRED}")
    governance = branch(root, "governance")
    known = governance.get("force_required")
    before = known.items if isinstance(known, Sequence) else (known,) if known is not None else ()
    merged = Sequence((*before, *(Scalar(word, mark) for word in words)), known.mark if known else mark)
    return root.with_value("governance", governance.with_value("force_required", merged))


MAX_EXPANDED = 1 << 20
_REFERENCE = re.compile(r"\$(\$\{)|\$\{([^{}]*)\}")
_NAME = re.compile(r"(?:env:|ENV:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\Z", re.DOTALL)
_ELSEWHERE = re.compile(r"(file|keyring|command):(.*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Unset:
    """A variable that was asked for and is not there, or a reference that cannot be read or failed (`failed` says why)."""

    variable: str
    path: KeyPath
    mark: Mark
    readable: bool = True
    failed: ReferenceFailed | None = None


def expand(node: Node, sources: ValueSources, path: KeyPath = ()) -> tuple[Node, list[Unset]]:
    """The tree with its variables filled in, and every variable that was missing (left as written)."""
    missing: list[Unset] = []
    return _expand(node, sources, path, missing), missing


def _expand(node: Node, sources: ValueSources, path: KeyPath, missing: list[Unset]) -> Node:
    match node:
        case Scalar():
            return _expand_scalar(node, sources, path, missing)
        case Sequence():
            items = tuple([_expand(item, sources, (*path, i), missing) for i, item in enumerate(node.items)])
            return node if _same(items, node.items) else replace(node, items=items)
        case Mapping():
            before = [entry.value for entry in node]
            after = [_expand(entry.value, sources, (*path, entry.key), missing) for entry in node]
            if _same(after, before):
                return node
            changed = {e.key: Entry(e.key, e.key_mark, value) for e, value in zip(node, after, strict=True)}
            return replace(node, entries=changed)
        case _:
            assert_never(node)


def _same(after: Iterable[Node], before: Iterable[Node]) -> bool:
    """Most branches hold no variable; those are kept instead of copied."""
    return all(map(operator.is_, after, before))


def _expand_scalar(node: Scalar, sources: ValueSources, path: KeyPath, missing: list[Unset]) -> Scalar:
    if node.text is None or "${" not in node.text:
        return node

    def fill(found: re.Match[str]) -> str:
        if found[1]:
            return "${"
        value = _value_of(found[2], sources, path, node.mark)
        if isinstance(value, Unset):
            missing.append(value)
            return found[0]
        return value

    text = _REFERENCE.sub(fill, node.text)
    if len(text) > MAX_EXPANDED:
        missing.append(
            Unset(f"(the expanded text is longer than {MAX_EXPANDED} characters)", path, node.mark, readable=False)
        )
        return node
    return replace(node, text=text, secret=text != node.text)


def _value_of(reference: str, sources: ValueSources, path: KeyPath, mark: Mark) -> str | Unset:
    if elsewhere := _ELSEWHERE.match(reference):
        try:
            return sources.value(elsewhere[1], elsewhere[2], mark, key_name(path))
        except ReferenceFailed as failed:
            return Unset(reference, path, mark, failed=failed)
    named = _NAME.match(reference)
    if not named:
        return Unset(reference, path, mark, readable=False)
    name, default = named[1], named[2]
    value = sources.variable(name)
    if default is not None and not value:
        return default
    return Unset(name, path, mark) if value is None else value
