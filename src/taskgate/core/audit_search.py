"""Finding rows of the audit log, and writing them for other systems: which rows are meant, and one row as a CEF line.

CEF is the line format that collectors of security events read. Values come from callers and servers, so everything that has a
meaning in CEF, and every line break, is escaped.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from taskgate.core.audit import AuditEntry, Row

_SEVERE: Final = ("denied", "call_denied", "quarantine", "broken", "revoked", "erased")
_FIELDS: Final = {
    "suser": "principal",
    "cs1": "scope",
    "cs2": "server",
    "cs3": "name",
    "cs4": "rule",
    "act": "decision",
    "outcome": "outcome",
    "reason": "reason",
}
_LABELS: Final = {"cs1": "scope", "cs2": "server", "cs3": "tool", "cs4": "rule"}


class AuditFilter(msgspec.Struct, frozen=True):
    """Empty means any. `text` is looked for in every field, whatever its case."""

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
        if any(wanted and wanted != found for wanted, found in exact):
            return False
        if entry.at_ms < self.since_ms or (self.until_ms and entry.at_ms >= self.until_ms):
            return False
        return not self.text or self.text.casefold() in _all_text(entry)


def _all_text(entry: AuditEntry) -> str:
    values = msgspec.structs.astuple(entry)
    return "\n".join(value if isinstance(value, str) else str(value) for value in values).casefold()


def cef_line(row: Row, version: str) -> bytes:
    """One row for a collector. The hash comes along, so that a line can be found again in the log."""
    entry = row.entry
    severity = 6 if any(word in entry.event for word in _SEVERE) else 3
    head = "|".join(
        ("CEF:0", "Taskgate", "Taskgate", _head(version), _head(entry.event), _head(entry.event), str(severity))
    )
    moment = datetime.fromtimestamp(entry.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    pairs = {
        "rt": str(entry.at_ms),
        "start": moment,
        "externalId": str(row.number),
        "cs5": row.hash,
        "cs5Label": "hash",
    }
    for key, name in _FIELDS.items():
        value = getattr(entry, name)
        if value:
            pairs[key] = value
            if key in _LABELS:
                pairs[f"{key}Label"] = _LABELS[key]
    return f"{head}|{' '.join(f'{key}={_value(value)}' for key, value in pairs.items())}\n".encode("utf-8", "replace")


def _head(text: str) -> str:
    return _one_line(text.replace("\\", "\\\\").replace("|", "\\|"), " ")


def _value(text: str) -> str:
    return _one_line(text.replace("\\", "\\\\").replace("=", "\\="), "\\n")


def _one_line(text: str, instead: str) -> str:
    return instead.join(text.splitlines())
