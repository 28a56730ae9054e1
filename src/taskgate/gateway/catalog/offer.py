"""One upstream's offer: its lists as last fetched, its capabilities and its instructions.

The lists of one upstream are fetched and fail independently: a list that could not be fetched keeps its earlier entries, and
`failed` has the reason. `to_bytes` and `from_bytes` convert an offer to the form in which it is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from taskgate.core.catalog.entry import CatalogEntry, EntryKind
from taskgate.core.catalog.names import alike_names
from taskgate.core.catalog.skills import SKILLS_EXTENSION, declares_skills
from taskgate.core.errors import TaskgateError
from taskgate.core.generations.generation import Generation
from taskgate.core.patterns import PatternKind, checked_skeleton
from taskgate.core.risk import Risk


class ListMethod(msgspec.Struct, frozen=True):
    """How one kind of entry is listed: the required capability, the method, and the member of the result."""

    capability: str
    method: str
    key: str


LISTS: Final[Mapping[EntryKind, ListMethod]] = {
    EntryKind.TOOL: ListMethod("tools", "tools/list", "tools"),
    EntryKind.PROMPT: ListMethod("prompts", "prompts/list", "prompts"),
    EntryKind.RESOURCE: ListMethod("resources", "resources/list", "resources"),
    EntryKind.TEMPLATE: ListMethod("resources", "resources/templates/list", "resourceTemplates"),
    EntryKind.SKILL: ListMethod(SKILLS_EXTENSION, "skills/list", "skills"),
}


def has_list(capabilities: Mapping[str, Any], kind: EntryKind) -> bool:
    """Return whether a server with these capabilities has a list of this kind."""
    return declares_skills(capabilities) if kind is EntryKind.SKILL else LISTS[kind].capability in capabilities


class OmittedTools(msgspec.Struct, frozen=True):
    """Tools that a server lists and that are in no view, because they are beyond a limit. They cannot be called either: their
    definitions were not read, so no rule, pin or approval was based on them.
    """

    names: frozenset[str] = frozenset()
    cut: bool = False
    """Whether the list was not fetched completely: an unlisted tool may be in the rest."""

    def covers(self, name: str) -> bool:
        """Return whether an unlisted name may be one of these, or looks like one."""
        if self.cut or not self.names:
            return self.cut
        looks = checked_skeleton(name, PatternKind.TOOL)
        return any(checked_skeleton(each, PatternKind.TOOL) == looks for each in self.names)

    def with_names(self, names: Iterable[str]) -> OmittedTools:
        every = self.names.union(names)
        return OmittedTools(every, self.cut) if len(every) <= MAX_NAMED else OmittedTools(frozenset(), cut=True)


MAX_NAMED: Final = 1_000
"""Maximum number of omitted tools kept by name. If there are more, no unlisted tool can be called."""
NOTHING_OMITTED: Final = OmittedTools()


class Offer(msgspec.Struct, frozen=True, eq=False):
    """`listed_ms` is the time of the last fetch (0: never), `ttl_s` the lifetime that the server declares for its lists."""

    entries: Mapping[EntryKind, tuple[CatalogEntry, ...]]
    capabilities: Mapping[str, Any]
    instructions: str | None = None
    generation: Generation | None = None
    listed_ms: int = 0
    ttl_s: float | None = None
    notes: tuple[str, ...] = ()
    failed: Mapping[EntryKind, TaskgateError] = msgspec.field(default_factory=dict)
    complete: bool = True
    """Whether every list was received or has failed; otherwise the rest follows."""
    omitted: OmittedTools = NOTHING_OMITTED

    _alike: dict[EntryKind, Mapping[str, tuple[str, ...]]] = msgspec.field(default_factory=dict)
    _risks: dict[str, Risk] = msgspec.field(default_factory=dict)
    _looks: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def declared_risk(self, tool: str) -> Risk | None:
        """Return what the server declares about a tool; None if it does not list the tool."""
        if not self._risks:
            self._risks.update((entry.name, entry.traits.risk) for entry in self.entries.get(EntryKind.TOOL, ()))
        return self._risks.get(tool)

    def looking_like(self, tool: str) -> Sequence[str]:
        """Return the listed tools that an unlisted name looks like."""
        if not self._looks:
            for entry in self.entries.get(EntryKind.TOOL, ()):
                self._looks.setdefault(checked_skeleton(entry.name, PatternKind.TOOL), []).append(entry.name)
        return self._looks.get(checked_skeleton(tool, PatternKind.TOOL), ())

    def alike(self, kind: EntryKind) -> Mapping[str, tuple[str, ...]]:
        """Return the tools or prompts whose names look like others of this server, each with these others."""
        found = self._alike.get(kind)
        if found is None:
            found = self._alike[kind] = alike_names(entry.name for entry in self.entries.get(kind, ()))
        return found

    @property
    def announces_changes(self) -> bool:
        """Return whether the server announces changes of all its lists."""
        return self.announced_kinds >= self.entries.keys()

    @property
    def announced_kinds(self) -> frozenset[EntryKind]:
        """Return the lists whose changes the server announces."""
        offered = {kind: self.capabilities.get(LISTS[kind].capability) for kind in self.entries}
        return frozenset(
            kind for kind, each in offered.items() if isinstance(each, Mapping) and each.get("listChanged") is True
        )

    def counts(self) -> dict[str, int]:
        return {how.key: len(self.entries[kind]) for kind, how in LISTS.items() if kind in self.entries}


def difference(before: Offer | None, after: Offer) -> frozenset[EntryKind]:
    """Return the lists that differ for callers."""
    if before is None:
        return frozenset(after.entries)
    kinds = {*before.entries, *after.entries}
    if before.capabilities.get("tasks") != after.capabilities.get("tasks"):
        # The task support shown for every tool depends on it.
        return frozenset(kinds)
    return frozenset(kind for kind in kinds if _bytes(before, kind) != _bytes(after, kind))


def same(before: Offer | None, after: Offer) -> bool:
    """Return whether lists, capabilities and instructions are all unchanged."""
    if before is None or before.capabilities != after.capabilities or before.instructions != after.instructions:
        return False
    if before.generation is not after.generation or before.omitted != after.omitted:
        return False
    return before.notes == after.notes and not difference(before, after)


def _bytes(offer: Offer, kind: EntryKind) -> list[bytes] | None:
    entries = offer.entries.get(kind)
    return None if entries is None else [bytes(entry.raw) for entry in entries]
