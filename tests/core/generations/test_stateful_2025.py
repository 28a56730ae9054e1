"""The handshake of the stateful generation, and declared capabilities."""

from __future__ import annotations

from typing import Any

import pytest

from taskgate.core.errors import CallerError
from taskgate.core.generations.stateful import declares_tasks, read_initialize, supports_tasks


@pytest.mark.parametrize(
    ("asked", "old_stdio", "agreed"),
    [
        ("2025-11-25", False, "2025-11-25"),
        ("2025-03-26", False, "2025-03-26"),
        ("2024-11-05", False, "2025-11-25"),
        ("2024-11-05", True, "2024-11-05"),
        ("2099-01-01", False, "2025-11-25"),
    ],
)
def test_the_requested_revision_is_used_if_supported(asked: str, old_stdio: bool, agreed: str) -> None:
    opening = read_initialize(
        {"protocolVersion": asked, "capabilities": {"x": {}}, "clientInfo": {"name": "n"}}, old_stdio
    )
    assert (opening.version, opening.capabilities, opening.client_info) == (agreed, {"x": {}}, {"name": "n"})


def test_missing_parts_become_empty() -> None:
    opening = read_initialize({"protocolVersion": "2025-11-25"})
    assert (opening.capabilities, opening.client_info) == ({}, {})


@pytest.mark.parametrize("params", [None, {}, {"protocolVersion": 1}])
def test_a_handshake_without_a_revision_is_refused(params: Any) -> None:
    with pytest.raises(CallerError):
        read_initialize(params)


def test_tasks_exist_in_the_newest_revision_only() -> None:
    assert supports_tasks("2025-11-25")
    assert not supports_tasks("2025-06-18")
    assert declares_tasks({"tasks": {}})
    assert not declares_tasks({"tasks": True})
