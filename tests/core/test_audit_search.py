"""Filters of the audit log, and rows as CEF lines."""

from __future__ import annotations

import pytest

from taskgate.core.audit.cef import cef_line
from taskgate.core.audit.chain import AuditEntry, next_row
from taskgate.core.audit.search import AuditFilter

ENTRY = AuditEntry(5_000, "call_denied", "ann", "review", "bank", "drop", decision="policy_denied", reason="Too DEAR")


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (AuditFilter(), True),
        (AuditFilter(event="call_denied", caller="ann", server="bank", tool="drop", decision="policy_denied"), True),
        (AuditFilter(event="call"), False),
        (AuditFilter(caller="bob"), False),
        (AuditFilter(server="ban"), False),
        (AuditFilter(tool="Drop"), False),
        (AuditFilter(decision="forward"), False),
        (AuditFilter(text="too dear"), True),
        (AuditFilter(text="cheap"), False),
        (AuditFilter(since_ms=5_000, until_ms=5_001), True),
        (AuditFilter(since_ms=5_001), False),
        (AuditFilter(until_ms=5_000), False),
    ],
)
def test_every_filter_narrows(wanted: AuditFilter, fits: bool) -> None:
    assert wanted.matches(ENTRY) is fits


def test_a_cef_line_is_one_line_for_any_text() -> None:
    hostile = AuditEntry(0, "ev|il\nCEF:0|x", "a=b\\c\r\nact=forward", reason="\u2028x|y")
    line = cef_line(next_row(None, hostile), "1|0").decode()
    assert line.count("\n") == 1
    assert line.startswith("CEF:0|Taskgate|Taskgate|1\\|0|ev\\|il CEF:0\\|x|ev\\|il CEF:0\\|x|3|rt=0 ")
    assert "suser=a\\=b\\\\c\\nact\\=forward" in line
    assert "reason=\\nx|y" in line


def test_a_cef_line_has_fields_and_severity() -> None:
    row = next_row(None, ENTRY)
    line = cef_line(row, "1.0").decode()
    assert "|call_denied|call_denied|6|" in line
    for part in ("externalId=1", f"cs5={row.hash}", "cs2=bank cs2Label=server", "cs3Label=tool", "act=policy_denied"):
        assert part in line
    assert "cs4" not in line
