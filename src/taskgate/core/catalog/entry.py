"""One entry of a server's list (tool, prompt, resource, template or skill), and how it is parsed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.catalog import apps
from taskgate.core.catalog.pin import definition_digest
from taskgate.core.catalog.skills import InvalidSkill, Skill, read_skill
from taskgate.core.catalog.task_support import TaskSupport, upstream_support
from taskgate.core.wire import Raw
from taskgate.lazy_dataclass import dataclass
from taskgate.mcp.param_headers import InvalidParamHeader, ParamHeader, param_headers_of

_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


MAX_NAME: Final = 8192


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


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """`name` is the server's own: the name of a tool or prompt, the URI of a resource, the URI template of a template."""

    kind: EntryKind
    server: str
    name: str
    raw: Raw
    definition: Mapping[str, Any]
    _memo: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """The digest of the whole definition, computed once: it costs more than the rest of a call."""
        known: str | None = self._memo.get("digest")
        if known is None:
            known = self._memo["digest"] = definition_digest(self.definition)
        return known

    @property
    def task_support(self) -> TaskSupport | None:
        """The `taskSupport` that the server declares for this tool. Computed once, used by every call."""
        if "task_support" not in self._memo:
            self._memo["task_support"] = upstream_support(self.definition)
        found: TaskSupport | None = self._memo["task_support"]
        return found

    @property
    def ui_addresses(self) -> tuple[str, ...]:
        """The URIs of a tool's user interface, as its server declares them."""
        if "ui" not in self._memo:
            self._memo["ui"] = apps.ui_addresses(self.definition)
        found: tuple[str, ...] = self._memo["ui"]
        return found

    @property
    def is_for_model(self) -> bool:
        """Whether the server allows a model to see the tool."""
        if "model" not in self._memo:
            self._memo["model"] = apps.is_for_model(self.definition)
        found: bool = self._memo["model"]
        return found

    @property
    def header_params(self) -> tuple[ParamHeader, ...] | None:
        """The arguments of a tool that are also sent as headers; None if the declaration is invalid."""
        if "headers" not in self._memo:
            try:
                self._memo["headers"] = param_headers_of(self.input_schema)
            except InvalidParamHeader:
                self._memo["headers"] = None
        found: tuple[ParamHeader, ...] | None = self._memo["headers"]
        return found

    @property
    def skill(self) -> Skill:
        """The entry as a skill. Lists have only valid ones."""
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
    """Parse one entry of a list; None if it has no name, a name that is too long, or is an invalid skill. Raises
    BeyondLimits if it is nested too deeply.
    """
    text = bytes(raw)
    definition = wire.parse_strictly(text, max_depth)
    name = name_in(kind, definition)
    if name is None or (kind is EntryKind.SKILL and _skill_fault(definition) is not None):
        return None
    return CatalogEntry(kind, server, name, Raw(text), definition)


def name_in(kind: EntryKind, definition: Any) -> str | None:
    """Return the name or URI of an entry, if it is valid."""
    name = definition.get(NAMED_BY[kind]) if type(definition) is dict else None
    return name if type(name) is str and 0 < len(name) <= MAX_NAME else None


def read_entries(kind: EntryKind, server: str, listed: Raw) -> Iterator[CatalogEntry]:
    """Return the valid entries of a stored list. Lists from servers are read by `gateway.catalog.fetch_lists`."""
    try:
        elements = _elements(listed)
    except msgspec.MsgspecError:
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
