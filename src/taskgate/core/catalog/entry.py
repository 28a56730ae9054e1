"""To whom a list is shown: what its revision of the protocol can express, and what it said about itself.

One thing that an upstream offers: a tool, a prompt, a resource or a resource template.

An entry keeps the upstream's exact bytes beside the few fields that we decide on. Rendering it for a caller replaces its name and
how it may be called as a task, and leaves every other byte alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from taskgate.core import wire
from taskgate.core.catalog.annotate import TaskSupport, upstream_support
from taskgate.core.catalog.output_schema import describes_objects, with_notice
from taskgate.core.catalog.pin import definition_digest
from taskgate.core.generations import Generation
from taskgate.core.wire import Members, Raw


class Audience(NamedTuple):
    generation: Generation
    speaks_tasks: bool = True
    """Whether its revision has tasks at all: before 2025-11-25 nothing may be said about them."""
    task_aware: bool = False
    """Whether it declared that it knows tasks. Fixed for a session: what one call does changes nothing that is shown."""


STATELESS_AUDIENCE = Audience(Generation.STATELESS)


_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


MAX_NAME: Final = 8192


class EntryKind(StrEnum):
    TOOL = "tool"
    PROMPT = "prompt"
    RESOURCE = "resource"
    TEMPLATE = "template"


_NAMED_BY: Final = {
    EntryKind.TOOL: "name",
    EntryKind.PROMPT: "name",
    EntryKind.RESOURCE: "uri",
    EntryKind.TEMPLATE: "uriTemplate",
}


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """`name` is the upstream's own: a tool's or prompt's name, a resource's URI, a template's URI template."""

    kind: EntryKind
    server: str
    name: str
    raw: Raw
    definition: Mapping[str, Any]
    _memo: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """The digest of the whole definition, computed once: it costs more than everything else about a call."""
        known = self._memo.get("digest")
        if known is None:
            known = self._memo["digest"] = definition_digest(self.definition)
        return known

    @property
    def task_support(self) -> TaskSupport | None:
        """What the upstream itself says about calling this tool as a task."""
        return upstream_support(self.definition)

    @property
    def input_schema(self) -> Any:
        return self.definition.get("inputSchema")

    @property
    def annotations(self) -> Mapping[str, Any]:
        found = self.definition.get("annotations")
        return found if isinstance(found, Mapping) else {}


def read_entries(kind: EntryKind, server: str, listed: Raw) -> Iterator[CatalogEntry]:
    """The usable entries of one page. An entry without a name, or with an endless one, is not usable and is left out."""
    try:
        elements = _elements(listed)
    except msgspec.MsgspecError:
        return
    for raw in elements:
        definition = wire.parse_strictly(bytes(raw))
        name = definition.get(_NAMED_BY[kind]) if type(definition) is dict else None
        if type(name) is str and 0 < len(name) <= MAX_NAME:
            yield CatalogEntry(kind, server, name, raw, definition)


def render(
    entry: CatalogEntry, wire_name: str, support: TaskSupport | None, audience: Audience, *, notices: bool = False
) -> bytes:
    """The entry as a caller sees it. Only tools and prompts are renamed: URIs are linked to from results.

    With `notices` a tool's result may be replaced by a notice of ours, and its output schema says so.
    """
    if entry.kind not in (EntryKind.TOOL, EntryKind.PROMPT):
        return bytes(entry.raw)
    members = wire.members_of(entry.raw)
    if wire_name != entry.name:
        members["name"] = wire.raw(wire_name)
    if entry.kind is EntryKind.TOOL:
        _tell_of_tasks(members, support, audience)
        if "outputSchema" in members:
            _fit_output_schema(members, entry.definition["outputSchema"], audience, notices)
    return wire.join(members)


def _tell_of_tasks(members: Members, support: TaskSupport | None, audience: Audience) -> None:
    if audience.generation is Generation.STATELESS:
        members.pop("execution", None)
    elif not audience.speaks_tasks:
        members.pop("execution", None)
        annotations = members.get("annotations")
        if annotations is not None and b'"taskSupport"' in bytes(annotations):
            kept = {key: value for key, value in wire.members_of(annotations).items() if key != "taskSupport"}
            members["annotations"] = Raw(wire.join(kept))
    elif support is not None:
        for holder in ("execution", "annotations"):
            members[holder] = _with_support(members.get(holder), support)


def _fit_output_schema(members: Members, schema: Any, audience: Audience, notices: bool) -> None:
    """A stateful client that is shown an output schema of another type than object loses the whole list, so there such a schema
    is left out, and the tool's output is what its text says.
    """
    if audience.generation is Generation.STATEFUL and not describes_objects(schema):
        del members["outputSchema"]
    elif notices:
        union = with_notice(schema)
        if union is None:
            del members["outputSchema"]
        else:
            members["outputSchema"] = wire.raw(union)


def _with_support(holder: Raw | None, support: TaskSupport) -> Raw:
    inner = wire.members_of(holder) if holder is not None and bytes(holder)[:1] == b"{" else {}
    inner["taskSupport"] = wire.raw(support.value)
    return Raw(wire.join(inner))
