"""Filter rows of the audit log."""

from __future__ import annotations

import msgspec

from taskgate.core.audit.chain import AuditEntry


class AuditFilter(msgspec.Struct, frozen=True):
    """Empty fields match any row. `text` is searched in every field, case-insensitively."""

    event: str = ""
    caller: str = ""
    server: str = ""
    tool: str = ""
    decision: str = ""
    text: str = ""
    since_ms: int = 0
    until_ms: int = 0

    def matches(self, entry: AuditEntry) -> bool:
        exact = (
            (self.event, entry.event),
            (self.caller, entry.principal),
            (self.server, entry.server),
            (self.tool, entry.name),
            (self.decision, entry.decision),
        )
        if any(expected and expected != found for expected, found in exact):
            return False
        if entry.at_ms < self.since_ms or (self.until_ms and entry.at_ms >= self.until_ms):
            return False
        return not self.text or self.text.casefold() in _all_text(entry)


def _all_text(entry: AuditEntry) -> str:
    values = msgspec.structs.astuple(entry)
    return "\n".join(value if isinstance(value, str) else str(value) for value in values).casefold()
