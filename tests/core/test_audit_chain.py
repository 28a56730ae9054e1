"""The audit chain: for every changed, removed, inserted or swapped row, the first broken row is reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from taskgate.core.audit.chain import (
    CHAIN_BEGAN,
    AuditEntry,
    ChainBroken,
    ChainIntact,
    Head,
    Row,
    beginning,
    chain,
    export_line,
    from_export,
    heads_named,
    next_row,
    verify,
    verify_beside,
)

ENTRIES = [
    AuditEntry(
        1, "decided", principal="agent", server="files", name="delete_file", decision="approve", rule="rules[1]"
    ),
    AuditEntry(2, "approved", approvers=("ann", "bob"), approval_id="ap_1", reason="für Ann 😀"),
    AuditEntry(3, "finished", outcome="completed", executed="yes", arguments={"token": "[hidden]"}, hidden=("token",)),
    AuditEntry(4, "decided"),
]
ROWS = list(chain(None, ENTRIES))


def test_an_unchanged_chain_is_valid() -> None:
    assert verify(ROWS) == ChainIntact(4, ROWS[-1].hash)
    assert verify([]) == ChainIntact(0, ROWS[0].previous)
    assert verify(ROWS[2:], after=ROWS[1]) == ChainIntact(4, ROWS[-1].hash)
    assert next_row(ROWS[-1], ENTRIES[0]).number == 5


@pytest.mark.parametrize(
    ("tampered", "number"),
    [
        ([ROWS[0], replace(ROWS[1], entry=structs.replace(ENTRIES[1], reason="x")), *ROWS[2:]], 2),
        ([ROWS[0], *ROWS[2:]], 2),
        (ROWS[1:], 1),
        ([ROWS[0], ROWS[2], ROWS[1], ROWS[3]], 2),
        ([ROWS[0], ROWS[0], *ROWS[1:]], 2),
        ([ROWS[0], next_row(replace(ROWS[0], hash="sha256:x"), ENTRIES[1]), *ROWS[2:]], 2),
        ([replace(ROWS[0], hash=ROWS[1].hash), *ROWS[1:]], 1),
    ],
)
def test_the_first_broken_row_is_named(tampered: list[Row], number: int) -> None:
    found = verify(tampered)
    assert isinstance(found, ChainBroken)
    assert found.number == number


def test_a_rewritten_row_breaks_the_next_even_if_its_own_hash_is_recomputed() -> None:
    forged = next_row(None, structs.replace(ENTRIES[0], principal="somebody else"))
    assert verify([forged, *ROWS[1:]]) == ChainBroken(2, "it does not continue the row before it")


def test_the_export_can_be_verified_by_itself() -> None:
    lines = [export_line(row) for row in ROWS]
    assert all(line.count(b"\n") == 1 for line in lines)
    assert [from_export(json.loads(line)) for line in lines] == ROWS


def test_an_export_of_a_later_version_is_refused() -> None:
    line = json.loads(export_line(ROWS[0]))
    line["entry"]["colour"] = "red"
    with pytest.raises(ValueError, match="colour"):
        from_export(line)


@given(st.lists(st.builds(AuditEntry, st.integers(0), st.text(max_size=3)), min_size=1, max_size=8), st.data())
def test_every_change_of_a_row_is_detected(entries: list[AuditEntry], data: st.DataObject) -> None:
    rows = list(chain(None, entries))
    at = data.draw(st.integers(0, len(rows) - 1))
    rows[at] = replace(rows[at], entry=structs.replace(rows[at].entry, outcome="forged"))
    found = verify(rows)
    assert isinstance(found, ChainBroken)
    assert found.number == at + 1


def test_the_beginning_of_a_chain_names_the_ends_of_the_others() -> None:
    heads = (Head("gw_1", 3, "sha256:x"), Head("gw_2", 9, "sha256:y"))
    first = next_row(None, beginning("gw_3", heads))
    assert heads_named(first.entry) == heads
    assert heads_named(from_export(json.loads(export_line(first, "gw_3"))).entry) == heads
    assert json.loads(export_line(first, "gw_3"))["chain"] == "gw_3"
    assert "chain" not in json.loads(export_line(first))
    assert heads_named(AuditEntry(0, "call")) == ()


@pytest.mark.parametrize("text", [None, [["gw_1"]], [["gw_1", "three", "x"]]])
def test_an_invalid_first_row_is_an_error(text: Any) -> None:
    with pytest.raises(ValueError, match="other chains"):
        heads_named(AuditEntry(0, CHAIN_BEGAN, arguments=text))


def test_a_chain_must_contain_the_rows_that_other_chains_name() -> None:
    rows = list(chain(None, [AuditEntry(1, f"e{number}") for number in range(4)]))
    assert verify_beside(rows, {2: rows[1].hash, 4: rows[3].hash}) == ChainIntact(4, rows[3].hash)
    missing = verify_beside(rows[:3], {4: rows[3].hash})
    assert isinstance(missing, ChainBroken)
    assert missing.number == 4
    changed = verify_beside(rows, {2: "sha256:other", 9: "sha256:x"})
    assert isinstance(changed, ChainBroken)
    assert changed.number == 2
    assert isinstance(verify_beside([rows[0], rows[2]], {2: rows[1].hash}), ChainBroken)
    assert verify_beside(rows[2:], {1: "sha256:forgotten"}, after=rows[1]) == ChainIntact(4, rows[3].hash)
