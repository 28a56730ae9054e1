"""Expand `${VAR}`, `${VAR:-default}`, `${env:VAR}`, `${file:PATH}`, `${keyring:SERVICE/USER}` and `${command:ARGV}`.

`$${` is a literal `${`. Keys are never expanded. The caller decides what an unset variable or a failed reference means:
inside one server that server is skipped, anywhere else it is an error. Expanded text is marked as secret, so that no
message repeats it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, assert_never

import msgspec
from msgspec.structs import replace

from taskgate.config.problems import Mark, ReferenceFailed
from taskgate.config.tree import Entry, KeyPath, Mapping, Node, Scalar, Sequence, key_name

if TYPE_CHECKING:
    from taskgate.config.secret_sources import ValueSources


MAX_EXPANDED = 1 << 20
_REFERENCE = re.compile(r"\$(\$\{)|\$\{([^{}]*)\}")
_NAME = re.compile(r"(?:env:|ENV:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\Z", re.DOTALL)
_ELSEWHERE = re.compile(r"(file|keyring|command):(.*)\Z", re.DOTALL)


class Unset(msgspec.Struct, frozen=True):
    """An unset variable, a malformed reference (`readable` is False), or one that failed (`failed` is the reason)."""

    variable: str
    path: KeyPath
    mark: Mark
    readable: bool = True
    failed: ReferenceFailed | None = None


def expand(node: Node, sources: ValueSources, path: KeyPath = ()) -> tuple[Node, list[Unset]]:
    """Return the tree with its references expanded, and those that could not be, which stay unexpanded."""
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
    """Whether nothing was expanded; most branches have no variable and are kept instead of copied."""
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
