"""One entry of a list as a caller is shown it, and many upstreams' lists as one catalog."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from taskgate.core import wire
from taskgate.core.catalog import apps
from taskgate.core.catalog.names import RESERVED_NAMES, NameStyle, NameTable
from taskgate.core.catalog.output_schema import describes_objects, with_notice
from taskgate.core.catalog.pin import definition_digest
from taskgate.core.catalog.skills import InvalidSkill, Skill, read_skill
from taskgate.core.catalog.tool_listing import TaskSupport, upstream_support
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.generations import Generation
from taskgate.core.wire import Members, Raw
from taskgate.mcp.param_headers import InvalidParamHeader, ParamHeader, param_headers_of


class Audience(NamedTuple):
    generation: Generation
    speaks_tasks: bool = True
    """Whether its revision has tasks at all: before 2025-11-25 nothing may be said about them."""
    task_aware: bool = False
    """Whether it declared that it knows tasks. Fixed for a session: what one call does changes nothing that is shown."""
    renders_apps: bool = False
    """Whether its session declared MCP Apps. Lists of stateless callers do not depend on what a request declares."""


STATELESS_AUDIENCE = Audience(Generation.STATELESS)


_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


MAX_NAME: Final = 8192


class EntryKind(StrEnum):
    TOOL = "tool"
    PROMPT = "prompt"
    RESOURCE = "resource"
    TEMPLATE = "template"
    SKILL = "skill"


_NAMED_BY: Final = {
    EntryKind.TOOL: "name",
    EntryKind.PROMPT: "name",
    EntryKind.RESOURCE: "uri",
    EntryKind.TEMPLATE: "uriTemplate",
    EntryKind.SKILL: "uri",
}


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """`name` is the upstream's own: a tool's or prompt's name, a resource's URI, a template's URI template."""

    kind: EntryKind
    server: str
    name: str
    raw: Raw
    definition: Mapping[str, Any]
    _memo: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """The digest of the whole definition, computed once: it costs more than everything else about a call."""
        known: str | None = self._memo.get("digest")
        if known is None:
            known = self._memo["digest"] = definition_digest(self.definition)
        return known

    @property
    def task_support(self) -> TaskSupport | None:
        """What the upstream itself says about calling this tool as a task. Looked for once; every call of it asks."""
        if "task_support" not in self._memo:
            self._memo["task_support"] = upstream_support(self.definition)
        found: TaskSupport | None = self._memo["task_support"]
        return found

    @property
    def ui_addresses(self) -> tuple[str, ...]:
        """Where a tool says its user interface is, as its server writes it."""
        if "ui" not in self._memo:
            self._memo["ui"] = apps.ui_addresses(self.definition)
        found: tuple[str, ...] = self._memo["ui"]
        return found

    @property
    def is_for_model(self) -> bool:
        """Whether the server lets a model see the tool."""
        if "model" not in self._memo:
            self._memo["model"] = apps.is_for_model(self.definition)
        found: bool = self._memo["model"]
        return found

    @property
    def header_params(self) -> tuple[ParamHeader, ...] | None:
        """The arguments of a tool that are also sent as headers; None where the declaration breaks the rules."""
        if "headers" not in self._memo:
            try:
                self._memo["headers"] = param_headers_of(self.input_schema)
            except InvalidParamHeader:
                self._memo["headers"] = None
        found: tuple[ParamHeader, ...] | None = self._memo["headers"]
        return found

    @property
    def skill(self) -> Skill:
        """The entry as a skill. Only valid ones are in lists."""
        if "skill" not in self._memo:
            self._memo["skill"] = read_skill(self.definition)
        found: Skill = self._memo["skill"]
        return found

    @property
    def input_schema(self) -> Any:
        return self.definition.get("inputSchema")

    @property
    def annotations(self) -> Mapping[str, Any]:
        found = self.definition.get("annotations")
        return found if isinstance(found, Mapping) else {}


def read_entry(kind: EntryKind, server: str, raw: Raw, max_depth: int = wire.DEEPEST) -> CatalogEntry | None:
    """One entry of a list; None if it has no name or an endless one, or is a skill that breaks the specification. Raises
    BeyondLimits if it is nested deeper.
    """
    text = bytes(raw)
    definition = wire.parse_strictly(text, max_depth)
    name = name_in(kind, definition)
    if name is None or (kind is EntryKind.SKILL and _skill_fault(definition) is not None):
        return None
    return CatalogEntry(kind, server, name, Raw(text), definition)


def name_in(kind: EntryKind, definition: Any) -> str | None:
    """The name or URI that an entry goes by, if it has a usable one."""
    name = definition.get(_NAMED_BY[kind]) if type(definition) is dict else None
    return name if type(name) is str and 0 < len(name) <= MAX_NAME else None


def read_entries(kind: EntryKind, server: str, listed: Raw) -> Iterator[CatalogEntry]:
    """The usable entries of a list that was kept. One from a server is read by `gateway.catalog.fetch_lists`."""
    try:
        elements = _elements(listed)
    except msgspec.MsgspecError:
        return
    found = (read_entry(kind, server, raw) for raw in elements)
    yield from (entry for entry in found if entry is not None)


def skill_fault(raw: Raw) -> str | None:
    """Which rule an entry of `skills/list` breaks, with the address of the skill; None for a valid one."""
    definition = wire.parse_strictly(bytes(raw))
    return _skill_fault(definition if type(definition) is dict else {})


def _skill_fault(definition: Mapping[str, Any]) -> str | None:
    try:
        read_skill(definition)
    except InvalidSkill as fault:
        return f"{str(definition.get('uri'))[:200]}: {fault}"
    return None


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
    """The entry as a caller sees it. Tools and prompts are renamed; a URI is only replaced where several servers use it.

    With `notices` a tool's result may be replaced by a notice of ours, and its output schema says so. `interfaces` has the
    addresses of user interfaces that this caller is shown another address for, or none. `card` is the address of the gateway's own
    interface, for a tool that has none itself.
    """
    if entry.kind not in (EntryKind.TOOL, EntryKind.PROMPT):
        return bytes(entry.raw) if wire_name == entry.name else _readdressed(entry, wire_name)
    members = wire.members_of(entry.raw)
    if wire_name != entry.name:
        members["name"] = wire.raw(wire_name)
    if entry.kind is EntryKind.TOOL:
        if interfaces and any(uri in interfaces for uri in entry.ui_addresses):
            apps.with_addresses(members, interfaces)
        if card is not None:
            apps.with_interface(members, card)
        _tell_of_tasks(members, support, audience)
        if "outputSchema" in members:
            _fit_output_schema(members, entry.definition["outputSchema"], audience, notices)
    return wire.join(members)


def _readdressed(entry: CatalogEntry, shown: str) -> bytes:
    return wire.join({**wire.members_of(entry.raw), _NAMED_BY[entry.kind]: wire.raw(shown)})


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


# Many upstreams' lists as one catalog: in a fixed order, each entry under one name, nothing lost without a word.
#
# Servers come in the order given, entries in their server's own order. Tools and prompts are renamed by the name table;
# resources keep their URIs, and where two servers offer the same one the first wins. What a caller may see is decided
# before merging.
#
# Pages of a merged list, by cursors that mean nothing to anyone but us.
#
# A cursor names a place in one list, which it knows by a digest of all entries. If the list has changed since, the
# cursor is refused instead of skipping or repeating entries: the caller starts again and gets the new list whole.
#
# The URIs that a result hands to its caller: links to resources, embedded resources, and what was read.

MAX_PER_SERVER = 10_000


@dataclass(frozen=True, slots=True)
class Merged:
    """One list out of many. `entries` maps the name shown to callers (or the URI) to its entry; `notes` are warnings."""

    entries: Mapping[str, CatalogEntry]
    names: NameTable | None
    notes: tuple[str, ...]


def merge(
    kind: EntryKind,
    listed: Mapping[str, Iterable[CatalogEntry]],
    style: NameStyle = NameStyle.PREFIXED,
    *,
    reserved: Iterable[str] = RESERVED_NAMES,
    per_server: int = MAX_PER_SERVER,
    prefixes: Mapping[str, str] = MappingProxyType({}),
    address: Callable[[CatalogEntry], str] | None = None,
) -> Merged:
    """Merge the lists of one kind, given per server. `address` is what callers know a resource by."""
    notes: list[str] = []
    entries = [entry for server, found in listed.items() for entry in _bounded(kind, server, found, per_server, notes)]
    if kind in (EntryKind.TOOL, EntryKind.PROMPT):
        # The gateway has tools of its own, and no prompts.
        taken = reserved if kind is EntryKind.TOOL else ()
        names = NameTable.build([(entry.server, entry.name) for entry in entries], style, taken, prefixes)
        notes += [str(collision) for collision in names.refused]
        pairs = ((names.to_wire.get((entry.server, entry.name)), entry) for entry in entries)
        return Merged({wire: entry for wire, entry in pairs if wire is not None}, names, tuple(notes))
    return Merged(dict(_first_of_each(entries, notes, address or _own_name)), None, tuple(notes))


def _bounded(
    kind: EntryKind, server: str, found: Iterable[CatalogEntry], limit: int, notes: list[str]
) -> list[CatalogEntry]:
    kept: dict[str, CatalogEntry] = {}
    for entry in found:
        if entry.name in kept:
            notes.append(f"Server {server!r} lists the {kind.value} {entry.name[:80]!r} twice; the first one is used.")
        elif len(kept) >= limit:
            notes.append(f"Server {server!r} lists more than {limit} {kind.value}s; the rest is left out.")
            break
        else:
            kept[entry.name] = entry
    return list(kept.values())


def _own_name(entry: CatalogEntry) -> str:
    return entry.name


def _first_of_each(
    entries: Iterable[CatalogEntry], notes: list[str], address: Callable[[CatalogEntry], str]
) -> Iterator[tuple[str, CatalogEntry]]:
    owners: dict[str, str] = {}
    for entry in entries:
        shown = address(entry)
        owner = owners.setdefault(shown, entry.server)
        if owner == entry.server:
            yield shown, entry
        else:
            notes.append(f"Both {owner!r} and {entry.server!r} offer {entry.name[:200]!r}; that of {owner!r} is used.")


MAX_CURSOR = 256


class InvalidCursor(CallerError):
    """A cursor that we did not make, or that belongs to a list which is no more."""

    def __init__(self) -> None:
        super().__init__("invalid_cursor", "This cursor is not valid (any more). List again from the beginning.")


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries, and the cursor for the next ones if there are any."""

    items: Sequence[bytes]
    next_cursor: str | None


def page(items: Sequence[bytes], cursor: Any, size: int) -> Page:
    """One page of encoded entries. `cursor` is whatever the caller sent, None for the first page."""
    start = 0 if cursor is None else _place(cursor, items)
    end = start + size
    return Page(items[start:end], _cursor(end, items) if end < len(items) else None)


def _cursor(place: int, items: Sequence[bytes]) -> str:
    return base64.urlsafe_b64encode(f"{place}.{_digest(items)}".encode("ascii")).decode("ascii")


def _place(cursor: Any, items: Sequence[bytes]) -> int:
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR:
        raise InvalidCursor
    try:
        place, _, digest = base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii").partition(".")
    except (binascii.Error, ValueError):
        raise InvalidCursor from None
    if not place.isdigit() or int(place) > len(items) or digest != _digest(items):
        raise InvalidCursor
    return int(place)


def _digest(items: Sequence[bytes]) -> str:
    return hashlib.sha256(b",".join(items)).hexdigest()[:16]


MARK: Final = b'"uri"'
"""A result without this hands out no URI: cheap to look for, also in results that nobody would want to parse."""
MAX_LINKS: Final = 1_000
MAX_URI: Final = 2_048


def uris_in(result: bytes) -> list[str]:
    """The URIs in the result of `tools/call`, `prompts/get` or `resources/read`; the first thousand of them."""
    if MARK not in result:
        return []
    try:
        value = wire.parse_strictly(result)
    except TaskgateError:
        return []
    found = {uri: None for uri in _found(value) if 0 < len(uri) <= MAX_URI}
    return list(found)[:MAX_LINKS]


_A_URI: Final = re.compile(rb'"uri"[ \t\r\n]{0,100}+:[ \t\r\n]{0,100}+("(?:[^"\\\x00-\x1f]|\\.){1,8192}+")')


def uris_between(result: bytes, begin: int, end: int) -> list[str]:
    """The URIs whose mark begins in this part of a result that is too large to be read whole. It finds every member `uri`,
    wherever it stands, so it may find more than `uris_in`.
    """
    found: dict[str, None] = {}
    at = result.find(MARK, begin, end + len(MARK) - 1)
    while at >= 0 and len(found) < MAX_LINKS:
        matched = _A_URI.match(result, at)
        if matched is not None:
            with suppress(ValueError):
                found[json.loads(matched[1])] = None
        at = result.find(MARK, at + len(MARK), end + len(MARK) - 1)
    return [uri for uri in found if len(uri) <= MAX_URI]


def _found(result: Any) -> Iterator[str]:
    if not isinstance(result, dict):
        return
    for block in _list(result.get("content")):
        yield from _of_block(block)
    for message in _list(result.get("messages")):
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else [content]:
            yield from _of_block(block)
    for block in _list(result.get("contents")):
        yield from _of(block)


def _of_block(block: Any) -> Iterator[str]:
    if isinstance(block, dict) and block.get("type") == "resource_link":
        yield from _of(block)
    elif isinstance(block, dict) and block.get("type") == "resource":
        yield from _of(block.get("resource"))


def _of(holder: Any) -> Iterator[str]:
    uri = holder.get("uri") if isinstance(holder, dict) else None
    if isinstance(uri, str):
        yield uri


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def scheme_of(uri: str) -> str | None:
    """What stands before the colon of a URI or URI template, if it can be the name of a scheme."""
    scheme, colon, _ = uri.partition(":")
    usable = scheme.isascii() and scheme[:1].isalpha() and all(c.isalnum() or c in "+-." for c in scheme)
    return scheme.lower() if colon and usable else None
