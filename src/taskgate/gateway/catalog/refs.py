"""A tool or prompt as a view shows it: the server, its name there, and the decision of the gates."""

from __future__ import annotations

import msgspec

from taskgate.core.catalog.entry import CatalogEntry
from taskgate.core.catalog.pinned_content import changed_definition
from taskgate.core.governance.decision import Decision
from taskgate.core.risk import Risk
from taskgate.core.wire import Raw
from taskgate.mcp.param_headers import ParamHeader


class ToolRef(msgspec.Struct, frozen=True, gc=False):
    """A tool under the name that callers use. A struct, because there may be thousands."""

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
    """Whether its `x-mcp-header` annotations are invalid: such a tool must not be shown to stateless callers."""
    revision: str = ""
    """Revision of the subset that contains it, for the audit log."""
    plain: bool = False
    """Whether a call can be forwarded directly: no gate applies, no task, no headers."""
    has_output_schema: bool = False
    timeout_s: float = 0.0
    """Timeout of a plain call."""
    risk: Risk | None = None
    """None for an unlisted tool if no rule depends on it."""
    changed_interface: str = ""
    """Digest of its interface if it differs from its pin."""

    @property
    def definition_digest(self) -> str:
        """Return the digest that an approval is bound to: the definition including its interface."""
        if self.entry is None:
            return ""
        changed = self.changed_interface
        return changed_definition(self.entry.digest, changed) if changed else self.entry.digest

    @property
    def is_for_model(self) -> bool:
        """Return whether the server lets a model see it; True for an unlisted tool."""
        return self.entry is None or self.entry.is_for_model


class PromptRef(msgspec.Struct, frozen=True):
    wire: str
    server: str
    name: str
    entry: CatalogEntry | None
    """None if its server does not list it."""
