"""One entry of a server's list (tool, prompt, resource, template or skill), and how it is parsed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog import apps
from taskgate.core.catalog.pin import definition_digest
from taskgate.core.catalog.skills import InvalidSkill, Skill, read_skill
from taskgate.core.catalog.task_support import TaskSupport, upstream_support
from taskgate.core.digest import digest_of_bytes
from taskgate.core.meta import META
from taskgate.core.risk import Risk, declared_risk
from taskgate.core.strict_json import read_compact
from taskgate.core.wire import Raw
from taskgate.mcp.json_errors import UNDECODABLE
from taskgate.mcp.param_headers import ANNOTATION, InvalidParamHeader, ParamHeader, param_headers_of

_elements = msgspec.json.Decoder(list[Raw]).decode


MAX_NAME: Final = 8192
DEFINITIONS_CACHED: Final = 256
"""Parsed definitions that are kept, for tools that are called often."""
ANNOTATION_BYTES: Final = ANNOTATION.encode()


class EntryKind(StrEnum):
    TOOL = "tool"
    PROMPT = "prompt"
    RESOURCE = "resource"
    TEMPLATE = "template"
    SKILL = "skill"


NAMED_BY: Final = {
    EntryKind.TOOL: "name",
    EntryKind.PROMPT: "name",
    EntryKind.RESOURCE: "uri",
    EntryKind.TEMPLATE: "uriTemplate",
    EntryKind.SKILL: "uri",
}


class Traits(msgspec.Struct, frozen=True):
    """Parsed properties of a definition that lists and calls use often. Most tools have equal traits, which are kept once."""

    task_support: TaskSupport | None = None
    """The `taskSupport` that the server declares for this tool."""
    ui_addresses: tuple[str, ...] = ()
    """The URIs of a tool's user interface, as its server declares them."""
    is_for_model: bool = True
    """Whether the server allows a model to see the tool."""
    is_for_apps: bool = True
    """Whether the server allows apps to call the tool."""
    header_params: tuple[ParamHeader, ...] | None = ()
    """The arguments of a tool that are also sent as headers; None if the declaration is invalid."""
    has_output_schema: bool = False
    risk: Risk = Risk.UNDECLARED
    """What the hints of a tool declare."""


_COMMON_TRAITS: Final = Traits()
_WITH_TRAITS: Final = frozenset({META, "annotations", "execution", "outputSchema"})


class CatalogEntry(msgspec.Struct, frozen=True, eq=False, gc=False):
    """`name` is the server's own: the name of a tool or prompt, the URI of a resource, the URI template of a template.

    Only the bytes of the definition are kept: parsed, it would take several times as much memory. A struct, because there may be
    thousands.
    """

    kind: EntryKind
    server: str
    name: str
    raw: Raw
    traits: Traits = _COMMON_TRAITS
    skill_entry: Skill | None = None
    _digest: str = ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CatalogEntry):
            return NotImplemented
        return self is other or self._key() == other._key()

    def __ne__(self, other: object) -> bool:
        # The one of `msgspec.Struct` compares the identity.
        return not self == other

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[EntryKind, str, str, bytes]:
        """Return what all else follows from."""
        return self.kind, self.server, self.name, bytes(self.raw)

    @property
    def definition(self) -> Mapping[str, Any]:
        """The parsed definition. The last ones used are cached."""
        return _parsed(bytes(self.raw))

    @property
    def digest(self) -> str:
        """The digest of the whole definition, computed once: it costs more than the rest of a call."""
        if not self._digest:
            msgspec.structs.force_setattr(self, "_digest", definition_digest(self.definition))
        return self._digest

    @property
    def task_support(self) -> TaskSupport | None:
        return self.traits.task_support

    @property
    def ui_addresses(self) -> tuple[str, ...]:
        return self.traits.ui_addresses

    @property
    def is_for_model(self) -> bool:
        return self.traits.is_for_model

    @property
    def header_params(self) -> tuple[ParamHeader, ...] | None:
        return self.traits.header_params

    @property
    def skill(self) -> Skill:
        """The entry as a skill. Lists have only valid ones."""
        assert self.skill_entry is not None
        return self.skill_entry

    @property
    def input_schema(self) -> Any:
        return self.definition.get("inputSchema")

    @property
    def annotations(self) -> Mapping[str, Any]:
        found = self.definition.get("annotations")
        return found if isinstance(found, Mapping) else {}


@lru_cache(maxsize=DEFINITIONS_CACHED)
def _parsed(raw: bytes) -> Mapping[str, Any]:
    definition: Mapping[str, Any] = wire.parse_strictly(raw)
    return definition


def read_entry(kind: EntryKind, server: str, raw: Raw, max_depth: int = wire.DEEPEST) -> CatalogEntry | None:
    """Parse one entry of a list; None if it has no name, a name that is too long, or is an invalid skill. Raises
    BeyondLimits if it is nested too deeply.
    """
    text = bytes(raw)
    compact = read_compact(text)
    if compact is None:
        definition = wire.parse_strictly(text, max_depth)
    else:
        definition = compact.value
        wire.check_limits(definition, text, max_depth)
    name = name_in(kind, definition)
    if name is None:
        return None
    match kind:
        case EntryKind.TOOL:
            digest = definition_digest(definition) if compact is None else digest_of_bytes(compact.canonical)
            return CatalogEntry(
                kind=kind,
                server=server,
                name=name,
                raw=Raw(text),
                traits=_traits(definition, text),
                skill_entry=None,
                _digest=digest,
            )
        case EntryKind.SKILL:
            try:
                return CatalogEntry(kind, server, name, Raw(text), skill_entry=read_skill(definition))
            except InvalidSkill:
                return None
        case _:
            return CatalogEntry(kind, server, name, Raw(text))


def _traits(definition: Mapping[str, Any], text: bytes) -> Traits:
    params = _header_params(definition, text)
    if params == () and _WITH_TRAITS.isdisjoint(definition):
        return _COMMON_TRAITS
    found = Traits(
        task_support=upstream_support(definition),
        ui_addresses=apps.ui_addresses(definition),
        is_for_model=apps.is_for_model(definition),
        is_for_apps=apps.is_for_apps(definition),
        header_params=params,
        has_output_schema="outputSchema" in definition,
        risk=declared_risk(definition.get("annotations")),
    )
    return _COMMON_TRAITS if found == _COMMON_TRAITS else found


def _header_params(definition: Mapping[str, Any], text: bytes) -> tuple[ParamHeader, ...] | None:
    # Without an escape in the bytes, an annotation is in them literally.
    if ANNOTATION_BYTES not in text and b"\\u" not in text:
        return ()
    try:
        return param_headers_of(definition.get("inputSchema"))
    except InvalidParamHeader:
        return None


def name_in(kind: EntryKind, definition: Any) -> str | None:
    """Return the name or URI of an entry, if it is valid."""
    name = definition.get(NAMED_BY[kind]) if type(definition) is dict else None
    return name if type(name) is str and 0 < len(name) <= MAX_NAME else None


def read_entries(kind: EntryKind, server: str, listed: Raw) -> Iterator[CatalogEntry]:
    """Return the valid entries of a stored list. Lists from servers are read by `gateway.catalog.fetch_lists`."""
    try:
        elements = _elements(listed)
    except UNDECODABLE:
        return
    found = (read_entry(kind, server, raw) for raw in elements)
    yield from (entry for entry in found if entry is not None)


def skill_fault(raw: Raw) -> str | None:
    """Return which rule an entry of `skills/list` violates, with the URI of the skill; None for a valid one."""
    definition = wire.parse_strictly(bytes(raw))
    return _skill_fault(definition if type(definition) is dict else {})


def _skill_fault(definition: Mapping[str, Any]) -> str | None:
    try:
        read_skill(definition)
    except InvalidSkill as fault:
        return f"{str(definition.get('uri'))[:200]}: {fault}"
    return None
