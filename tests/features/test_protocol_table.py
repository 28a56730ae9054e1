"""The table in docs/protocol.md names every method, agrees with the gateway's own tables, and every test it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from taskgate.assembly.build import build
from taskgate.config.load import LoadedConfig
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.store.sqlite.store import open_store

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = ROOT / "docs" / "protocol.md"
BOTH = {
    *("tools/list", "tools/call", "prompts/list", "prompts/get", "resources/list", "resources/templates/list"),
    *("resources/read", "completion/complete", "tasks/get", "tasks/cancel"),
    *("skills/list", "skills/get", "resources/directory/read"),
}
REQUESTS_2025 = BOTH | {
    *("initialize", "ping", "resources/subscribe", "resources/unsubscribe", "logging/setLevel"),
    *("tasks/result", "tasks/list"),
}
REQUESTS_2026 = BOTH | {"server/discover", "subscriptions/listen", "tasks/update"}
VENDOR = {"tasks/create", "requests/cancel", "elicitation/create (list form)"}
TITLES = ("Requests of a caller", "Questions of a server", "Notifications")
QUESTIONS = {"elicitation/create", "sampling/createMessage", "roots/list"}
NOTIFICATIONS_OF_BOTH = {
    f"notifications/{name}"
    for name in (
        *("cancelled", "progress", "message", "resources/updated", "resources/list_changed"),
        *("tools/list_changed", "prompts/list_changed"),
    )
}
NOTIFICATIONS_2025 = NOTIFICATIONS_OF_BOTH | {
    f"notifications/{name}" for name in ("initialized", "roots/list_changed", "elicitation/complete", "tasks/status")
}
NOTIFICATIONS_2026 = NOTIFICATIONS_OF_BOTH | {"notifications/tasks", "notifications/subscriptions/acknowledged"}


def rows() -> list[list[str]]:
    return rows_in(TABLE.read_text())


def rows_in(text: str) -> list[list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return [row for row in cells if len(row) == 5 and row[0].startswith("`")]


def section(title: str) -> list[list[str]]:
    """The rows below one heading: a method may be in several tables, and must be in each of them."""
    text = TABLE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return rows_in(text)


def marked(found: list[list[str]], column: int, word: str = "yes") -> list[str]:
    """The entries of the rows, sorted, with the text after the method; duplicates are kept."""
    return sorted(row[0].replace("`", "") for row in found if row[column] == word)


def test_every_method_of_both_revisions_is_in_the_table() -> None:
    requests = section("Requests of a caller")
    assert marked(requests, 1) == sorted(REQUESTS_2025)
    assert marked(requests, 2) == sorted(REQUESTS_2026)
    assert marked(requests, 1, "vendor") == sorted(VENDOR)


def test_every_question_of_a_server_is_in_the_table() -> None:
    questions = section("Questions of a server")
    assert marked(questions, 1) == sorted([*QUESTIONS, "elicitation/create (URL)", "ping"])
    assert marked(questions, 2) == sorted([*QUESTIONS, "elicitation/create (URL)"])
    assert marked(questions, 1, "vendor") == ["elicitation/create (list form)"]


def test_every_notification_is_in_the_table() -> None:
    news = section("Notifications")
    assert marked(news, 1) == sorted(NOTIFICATIONS_2025)
    assert marked(news, 2) == sorted(NOTIFICATIONS_2026)


def test_every_row_of_the_protocol_table_has_handler_and_reason() -> None:
    """A row with a cell too many or too few would not be looked at."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| `")]
    assert len(lines) == len(rows()) == sum(len(section(title)) for title in TITLES)
    assert all(row[3] and row[4].startswith("tests/") for row in rows())


async def test_the_table_agrees_with_the_responses_of_the_gateway(tmp_path: Path) -> None:
    store = open_store(tmp_path / "table.db")
    try:
        dispatcher = build(LoadedConfig(GatewayFile()), store).gateway.transports.requests
        assert set(dispatcher.stateful) == REQUESTS_2025 - {"initialize"}
        assert set(dispatcher.stateless) == REQUESTS_2026
        # Some methods of the protocol have another form in the vendor's dialect; the rest is the vendor's own.
        own = set(dispatcher.vendor.methods) - set(dispatcher.stateful)
        assert own == {name.partition(" ")[0] for name in VENDOR}
    finally:
        await store.close()


@pytest.mark.parametrize("proof", sorted({row[4] for row in rows()}))
def test_every_test_named_in_the_table_exists(proof: str) -> None:
    path, _, name = proof.partition("::")
    text = (ROOT / path).read_text()
    assert re.search(rf"^(async )?def {re.escape(name)}\(", text, re.MULTILINE), f"{proof} is gone"
