"""Merge the selected entry of `environments` into the rest of the file.

Maps are merged key by key; lists and single values replace; an empty value (`key:` or `null`) removes the key.
`$TASKGATE_ENV` selects the entry, else the key `environment`. An unknown name is an error; a file without
`environments` ignores the variable.
"""

from __future__ import annotations

from collections.abc import Mapping as Environment

from taskgate.config.problems import ConfigError, Mark, did_you_mean, one_of, problem_at
from taskgate.config.tree import Mapping, Node, Scalar

CHOICE = "TASKGATE_ENV"
_NOT_IN_AN_OVERLAY = ("schema", "environment", "environments")


def apply_overlay(root: Mapping, environment: Environment[str, str]) -> tuple[Mapping, str | None]:
    """Return the root with its environment merged and `environments` removed, and the name of the environment.

    Raises ConfigError.
    """
    entry = root.entries.get("environments")
    base = root.without("environments")
    from_variable = environment.get(CHOICE) or None
    name = from_variable or root.text("environment")
    if entry is None or name is None:
        if entry is None and root.text("environment") is not None:
            mark = root.entries["environment"].key_mark
            raise ConfigError(
                [problem_at(mark, "environment", "the file has no `environments`", "add it, or remove this key")]
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
        hint = did_you_mean(name, overlays.entries) or f"defined: {one_of(overlays.entries) or 'none'}"
        raise ConfigError([problem_at(mark, "environment", f'"{name}" is not in `environments`', hint)])
    for key in _NOT_IN_AN_OVERLAY:
        if key in chosen.entries:
            raise ConfigError(
                [
                    problem_at(
                        chosen.entries[key].key_mark,
                        f"environments.{name}.{key}",
                        "cannot be set per environment",
                        "move it to the top of the file",
                    )
                ]
            )
    return merge(base, chosen), name


def merge(below: Mapping, above: Mapping) -> Mapping:
    """Merge `above` into `below`; `above` takes precedence."""
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
    """Return the map at a key, or a new one, to be merged into."""
    value: Node | None = root.get(key)
    return value if isinstance(value, Mapping) else Mapping({}, root.mark)
