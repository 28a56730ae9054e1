"""`${VAR}`, `${VAR:-default}`, `${env:VAR}` and `${ENV:VAR}` in the values of a tree.

`$${` stands for a literal `${`. Keys are never expanded. What an unset variable means is for the caller to say:
inside one server it takes that server out, anywhere else it is an error. Expanded text is marked as secret, so that
no message repeats it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from collections.abc import Mapping as Environment
from dataclasses import dataclass, replace
from typing import assert_never

from taskgate.config.problems import Mark
from taskgate.config.tree import Entry, Mapping, Node, Path, Scalar, Sequence

MAX_EXPANDED = 1 << 20
_REFERENCE = re.compile(r"\$(\$\{)|\$\{([^{}]*)\}")
_NAME = re.compile(r"(?:env:|ENV:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Unset:
    """A variable that was asked for and is not there, or a reference that cannot be read."""

    variable: str
    path: Path
    mark: Mark
    readable: bool = True


def expand(node: Node, environment: Environment[str, str], path: Path = ()) -> tuple[Node, list[Unset]]:
    """The tree with its variables filled in, and every variable that was missing (left as written)."""
    missing: list[Unset] = []
    return _expand(node, environment, path, missing), missing


def _expand(node: Node, environment: Environment[str, str], path: Path, missing: list[Unset]) -> Node:
    match node:
        case Scalar():
            return _expand_scalar(node, environment, path, missing)
        case Sequence():
            items = tuple([_expand(item, environment, (*path, i), missing) for i, item in enumerate(node.items)])
            return node if _same(items, node.items) else replace(node, items=items)
        case Mapping():
            before = [entry.value for entry in node]
            after = [_expand(entry.value, environment, (*path, entry.key), missing) for entry in node]
            if _same(after, before):
                return node
            changed = {e.key: Entry(e.key, e.key_mark, value) for e, value in zip(node, after, strict=True)}
            return replace(node, entries=changed)
        case _:
            assert_never(node)


def _same(after: Iterable[Node], before: Iterable[Node]) -> bool:
    """Most branches hold no variable; those are kept instead of copied."""
    return all(map(operator.is_, after, before))


def _expand_scalar(node: Scalar, environment: Environment[str, str], path: Path, missing: list[Unset]) -> Scalar:
    if node.text is None or "${" not in node.text:
        return node

    def fill(found: re.Match[str]) -> str:
        if found[1]:
            return "${"
        reference = _NAME.match(found[2])
        if not reference:
            missing.append(Unset(found[2], path, node.mark, readable=False))
            return found[0]
        name, default = reference[1], reference[2]
        value = environment.get(name)
        if default is not None and not value:
            return default
        if value is None:
            missing.append(Unset(name, path, node.mark))
            return found[0]
        return value

    text = _REFERENCE.sub(fill, node.text)
    if len(text) > MAX_EXPANDED:
        missing.append(
            Unset(f"(the expanded text is longer than {MAX_EXPANDED} characters)", path, node.mark, readable=False)
        )
        return node
    return replace(node, text=text, secret=text != node.text)
