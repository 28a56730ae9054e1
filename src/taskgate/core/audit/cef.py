"""Rows of the audit log as CEF lines, the format that collectors of security events read.

Values come from callers and servers, so every character that has a meaning in CEF, and every line break, is escaped.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from taskgate.core.audit.chain import Row

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


def cef_line(row: Row, version: str) -> bytes:
    """Return one row as a CEF line. It includes the hash, so that the row can be found in the log."""
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
