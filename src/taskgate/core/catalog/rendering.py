"""One entry of a list as a caller sees it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from taskgate.core import wire
from taskgate.core.catalog import apps
from taskgate.core.catalog.entry import NAMED_BY, CatalogEntry, EntryKind
from taskgate.core.catalog.output_schema import describes_objects, with_notice
from taskgate.core.catalog.task_support import TaskSupport
from taskgate.core.generations.generation import Generation
from taskgate.core.wire import Members, Raw


class Audience(NamedTuple):
    """The properties of a caller that lists depend on."""

    generation: Generation
    supports_tasks: bool = True
    """Whether its revision has tasks: before 2025-11-25 lists must not mention them."""
    task_aware: bool = False
    """Whether it declared tasks. Fixed for a session."""
    renders_apps: bool = False
    """Whether its session declared MCP Apps. Lists of stateless callers do not depend on what a request declares."""


STATELESS_AUDIENCE = Audience(Generation.STATELESS)


def render(
    entry: CatalogEntry,
    wire_name: str,
    support: TaskSupport | None,
    audience: Audience,
    *,
    notices: bool = False,
    interfaces: Mapping[str, str | None] = MappingProxyType({}),
    card: str | None = None,
) -> bytes:
    """Return the entry as a caller sees it. Tools and prompts are renamed; a URI is replaced only if several servers
    use it.

    `notices`: a notice of the gateway may replace the tool's result, and the output schema allows it. `interfaces` has
    the URIs of user interfaces that have another URI for this caller, or none. `card` is the URI of the gateway's own
    interface, for a tool without one.
    """
    if entry.kind not in (EntryKind.TOOL, EntryKind.PROMPT):
        return bytes(entry.raw) if wire_name == entry.name else _with_address(entry, wire_name)
    members = wire.members_of(entry.raw)
    if wire_name != entry.name:
        members["name"] = wire.raw(wire_name)
    if entry.kind is EntryKind.TOOL:
        if interfaces and any(uri in interfaces for uri in entry.ui_addresses):
            apps.with_addresses(members, interfaces)
        if card is not None:
            apps.with_interface(members, card)
        _set_task_support(members, support, audience)
        if "outputSchema" in members:
            _fit_output_schema(members, entry.definition["outputSchema"], audience, notices)
    return wire.join(members)


def _with_address(entry: CatalogEntry, shown: str) -> bytes:
    return wire.join({**wire.members_of(entry.raw), NAMED_BY[entry.kind]: wire.raw(shown)})


def _set_task_support(members: Members, support: TaskSupport | None, audience: Audience) -> None:
    if audience.generation is Generation.STATELESS:
        members.pop("execution", None)
    elif not audience.supports_tasks:
        members.pop("execution", None)
        annotations = members.get("annotations")
        if annotations is not None and b'"taskSupport"' in bytes(annotations):
            kept = {key: value for key, value in wire.members_of(annotations).items() if key != "taskSupport"}
            members["annotations"] = Raw(wire.join(kept))
    elif support is not None:
        for holder in ("execution", "annotations"):
            members[holder] = _with_support(members.get(holder), support)


def _fit_output_schema(members: Members, schema: Any, audience: Audience, notices: bool) -> None:
    """A stateful client rejects the whole list if an output schema has another type than object. Such a schema is
    omitted, and the output of the tool is its text.
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
