"""A bounded cache of answers by name. One dictionary for each server takes a third of the memory of one with tuples as keys."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from taskgate.core.patterns import PatternKind

Answer = TypeVar("Answer")
# A caller may invent names if unlisted tools are allowed, so the cache is bounded.
MAX_REMEMBERED: Final = 50_000
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class AnswersByName(Generic[Answer]):
    __slots__ = ("_by_server", "_count")

    def __init__(self) -> None:
        self._by_server: dict[tuple[PatternKind, str], dict[str, Answer]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, kind: PatternKind, server: str) -> Mapping[str, Answer]:
        """Return the known answers for names of this kind and server."""
        return self._by_server.get((kind, server), _NOTHING)

    def keep(self, kind: PatternKind, server: str, name: str, answer: Answer) -> None:
        if self._count >= MAX_REMEMBERED:
            self._by_server.clear()
            self._count = 0
        self._by_server.setdefault((kind, server), {})[name] = answer
        self._count += 1
