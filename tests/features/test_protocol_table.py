"""The table in docs/protocol.md names every method, says the truth about the gateway's own tables, and every proof exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from taskgate.assembly.build import build
from taskgate.config.gateway_file import GatewayFile
from taskgate.config.load import LoadedConfig
from taskgate.store.sqlite.store import open_store

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = ROOT / "docs" / "protocol.md"
BOTH = {
    *("tools/list", "tools/call", "prompts/list", "prompts/get", "resources/list", "resources/templates/list"),
    *("resources/read", "completion/complete", "tasks/get", "tasks/cancel"),
}
REQUESTS_2025 = BOTH | {
    *("initialize", "ping", "resources/subscribe", "resources/unsubscribe", "logging/setLevel"),
    *("tasks/result", "tasks/list"),
}
REQUESTS_2026 = BOTH | {"server/discover", "subscriptions/listen", "tasks/update"}
QUESTIONS = {"elicitation/create", "sampling/createMessage", "roots/list"}
NEWS_OF_BOTH = {
    f"notifications/{name}"
    for name in (
        *("cancelled", "progress", "message", "resources/updated", "resources/list_changed"),
        *("tools/list_changed", "prompts/list_changed"),
    )
}
NEWS_2025 = NEWS_OF_BOTH | {
    f"notifications/{name}" for name in ("initialized", "roots/list_changed", "elicitation/complete", "tasks/status")
}
NEWS_2026 = NEWS_OF_BOTH | {"notifications/tasks", "notifications/subscriptions/acknowledged"}


def rows() -> list[list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.read_text().splitlines()]
    return [row for row in cells if len(row) == 5 and row[0].startswith("`")]


def method(row: list[str]) -> str:
    return row[0].split("`")[1]


def in_revision(column: int, *words: str) -> set[str]:
    return {method(row) for row in rows() if row[column] in words}


def test_every_method_of_both_revisions_is_in_the_table() -> None:
    assert in_revision(1, "yes") == REQUESTS_2025 | QUESTIONS | NEWS_2025
    assert in_revision(2, "yes") == REQUESTS_2026 | QUESTIONS | NEWS_2026


async def test_the_table_agrees_with_what_the_gateway_answers(tmp_path: Path) -> None:
    store = open_store(tmp_path / "table.db")
    try:
        gateway = build(LoadedConfig(GatewayFile()), store).gateway
        assert set(gateway._stateful) == REQUESTS_2025 - {"initialize"}
        assert set(gateway._stateless) == REQUESTS_2026
        assert set(gateway.vendor.methods) == in_revision(1, "vendor")
    finally:
        await store.close()


@pytest.mark.parametrize("proof", sorted({row[4] for row in rows()}))
def test_every_proof_exists(proof: str) -> None:
    path, _, name = proof.partition("::")
    text = (ROOT / path).read_text()
    assert re.search(rf"^(async )?def {re.escape(name)}\(", text, re.MULTILINE), f"{proof} is gone"
