"""A tool or prompt as a view shows it: the server, its name there, and the decision of the gates."""

from __future__ import annotations

from dataclasses import dataclass

from taskgate.core.catalog.entry import CatalogEntry
from taskgate.core.catalog.pinned_content import changed_definition
from taskgate.core.governance.decision import Decision
from taskgate.core.wire import Raw
from taskgate.mcp.param_headers import ParamHeader


@dataclass(frozen=True, slots=True)
class ToolRef:
    """A tool as a caller may name it."""

    wire: str
    server: str
    name: str
    decision: Decision
    entry: CatalogEntry | None
    upstream_tasks: bool
    forced: bool
    raw_name: Raw
    header_params: tuple[ParamHeader, ...] = ()
    unfit_for_headers: bool = False
    """Its `x-mcp-header` annotations break the rules: stateless callers must not be shown such a tool."""
    revision: str = ""
    """Of the subset it was found in, so that a call can be traced to what was in force."""
    plain: bool = False
    """Nothing stands between a call and its server: no gate but those that let it through, no task, no headers."""
    has_output_schema: bool = False
    timeout_s: float = 0.0
    """How long a plain call may take."""

    changed_interface: str = ""
    """The digest of its interface where that is not what was pinned."""

    @property
    def definition_digest(self) -> str:
        """What people agree to when they approve a call of it: the definition, its interface included."""
        if self.entry is None:
            return ""
        changed = self.changed_interface
        return changed_definition(self.entry.digest, changed) if changed else self.entry.digest

    @property
    def is_for_model(self) -> bool:
        """Whether its server lets a model see it. One that is not listed says nothing against it."""
        return self.entry is None or self.entry.is_for_model


@dataclass(frozen=True, slots=True)
class PromptRef:
    wire: str
    server: str
    name: str
    entry: CatalogEntry | None
    """None if its server does not list it."""
