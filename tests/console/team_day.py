"""The week of a team in the history of a gateway, for pictures of the console: agents, servers, failures and a slow afternoon.

The rows are written to the store before the gateway starts, through the same port as those of calls.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any

from tests.console import team_server
from tests.console.console_setup import CONFIG, Console
from tests.store.call_records import add_counts, add_history

from taskgate.core.history.counts import NO_LATENCY, Counted, Dimension, step_of
from taskgate.core.history.row import CallOutcome, HistoryRow, RowKind
from taskgate.store.operation import Flush
from taskgate.store.sqlite.store import open_store

SERVERS = (
    *(
        "files",
        "archive",
        "github",
        "jira",
        "slack",
        "crm",
        "billing",
        "warehouse",
        "search",
        "calendar",
        "mail",
        "wiki",
    ),
    *(
        "metrics",
        "logs",
        "deploy",
        "secrets",
        "browser",
        "translate",
        "maps",
        "payroll",
        "support",
        "fleet",
        "lab",
        "ledger",
    ),
)
TOOLS = {
    "github": ("list_pull_requests", "merge_pull_request", "read_file"),
    "crm": ("find_customer", "update_customer"),
    "billing": ("create_invoice", "list_invoices"),
    "warehouse": ("run_query", "explain_query"),
    "deploy": ("deploy_service", "roll_back"),
    "search": ("search_documents",),
}
USUAL_TOOLS = ("list_items", "get_item", "update_item")
CALLERS = ("research-agent", "build-agent", "support-agent", "billing-agent", "ops-agent", "anna", "ben", "chatbot")
CLIENTS = ("claude-code", "cursor", "langgraph", "taskgate-cli")
SLOW_SERVER, SLOW_FACTOR = "warehouse", 14
FAILING_SERVER = "maps"
DECIDED_AFTER_S = 9
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


DEMO_SERVERS = ("files", "archive")
RULES = [
    {"match": "delete_*", "action": "approve"},
    {"match": "deploy_*", "action": "approve"},
    {"match": "merge_*", "action": "approve"},
    {"match": "create_invoice", "action": "approve"},
]


def config() -> dict[str, Any]:
    """The usual setup, with all servers of the team."""
    broken = {"command": sys.executable, "args": ["-c", "raise SystemExit('cannot connect to maps.internal:8443')"]}
    names = dict.fromkeys(DEMO_SERVERS, CONFIG["servers"]["files"])
    names |= {
        name: {"command": sys.executable, "args": [str(Path(team_server.__file__)), name]}
        for name in SERVERS
        if name not in (*DEMO_SERVERS, FAILING_SERVER)
    }
    governance = {**CONFIG["governance"], "rules": RULES}
    return {**CONFIG, "servers": {**names, FAILING_SERVER: broken}, "governance": governance}


async def fill(database: Path, *, hours: int = 7 * 24, seed: int = 7) -> None:
    """A week of calls, most of them by day, with the last afternoon slow on one server."""
    now = time.time_ns() // 1_000_000
    store = open_store(database)
    try:
        for hours_ago in range(hours, 0, -1):
            # Its own sequence for each hour: the number of calls before it depends on the time of day.
            chance, hour = random.Random(seed * 1_000 + hours_ago), now - hours_ago * HOUR_MS
            of_day = (hour // HOUR_MS) % 24
            busy = 60 if 8 <= of_day <= 18 else 12
            count = chance.randint(busy // 2, busy) if hours_ago > 1 else 140
            times = sorted(chance.randint(hour, hour + HOUR_MS - 1) for _ in range(count))
            calls = [_call(chance, at, slow=hours_ago <= 3) for at in times]
            add_history(store, [row for row in calls if row.outcome is not CallOutcome.OK or hours_ago <= 48])
            for row in calls:
                add_counts(store, row.ended_ms, [*_counted(row), *_waited(chance, row)])
            await store.do(Flush())
    finally:
        await store.close()


async def open_calls(console: Console) -> str:
    """What is running and waiting at the moment; the id of a deployment that was approved and has ended."""
    release: dict[str, Any] = {
        "service": "checkout",
        "version": "2.14.0",
        "environment": "production",
        "canary_percent": 20,
    }
    await console.call("build-agent", "deploy__deploy_service", **release)
    await asyncio.sleep(DECIDED_AFTER_S)
    (held,) = await console.api("GET", "/api/v1/approvals")
    await console.api("POST", f"/api/v1/approvals/{held['id']}/approve", {}, "reviewer-token")
    query = "SELECT region, sum(amount) FROM orders JOIN refunds USING (order_id) GROUP BY region"
    await console.call("research-agent", "warehouse__run_query", sql=query, timeout_s=600)
    await console.call("build-agent", "files__slow_report", seconds=300)
    await console.call("research-agent", "warehouse__run_query", sql="SELECT * FROM events WHERE day = '2026-11-17'")
    await console.call(
        "build-agent", "github__merge_pull_request", repository="shop/checkout", number=4127, method="squash"
    )
    await console.call(
        "research-agent",
        "billing__create_invoice",
        customer="Northwind GmbH",
        amount=1840.5,
        currency="EUR",
        due="2026-12-15",
    )
    await console.call(
        "build-agent", "deploy__deploy_service", **{**release, "version": "2.14.1", "run_migrations": True}
    )
    async with asyncio.timeout(120):
        while (await console.api("GET", f"/api/v1/tasks/{held['task_id']}"))["state"] != "completed":
            await asyncio.sleep(0.5)
    return str(held["task_id"])


def _call(chance: random.Random, at_ms: int, *, slow: bool) -> HistoryRow:
    server = chance.choices(SERVERS, weights=[12 - min(place, 11) for place in range(len(SERVERS))])[0]
    tool = chance.choice(TOOLS.get(server, USUAL_TOOLS))
    caller = chance.choices(CALLERS, weights=(9, 8, 7, 4, 3, 2, 2, 5))[0]
    took = chance.lognormvariate(4.6, 1.1)
    if slow:
        took = max(3_000, SLOW_FACTOR * took) if server == SLOW_SERVER else min(2_000, took)
    outcome, error, rule, reason, kind = CallOutcome.OK, "", "", "", RowKind.CALL
    luck = chance.random()
    if server == FAILING_SERVER and luck < 0.6:
        outcome, error, reason = CallOutcome.FAILED, "upstream_unavailable", "connection refused"
    elif (luck < 0.02 and not slow) or (luck < 0.12 and slow and server == SLOW_SERVER):
        outcome, error, reason, took = CallOutcome.FAILED, "upstream_timeout", "no reply within 30 s", 30_000.0
    elif luck < 0.055:
        outcome = CallOutcome.TOOL_ERROR
    elif luck < 0.07 and tool in ("update_item", "merge_pull_request", "roll_back"):
        outcome, error, rule, kind = CallOutcome.DENIED, "policy_denied", "rules[4] update_*", RowKind.DENIAL
        reason = "writes are allowed in working hours only"
    took = 0 if kind is RowKind.DENIAL else took
    return HistoryRow(
        kind=kind,
        outcome=outcome,
        caller=caller,
        scope="default",
        server=server,
        tool=tool,
        client=chance.choice(CLIENTS),
        generation="stateful",
        accepted_ms=at_ms,
        sent_ms=0 if kind is RowKind.DENIAL else at_ms + 1,
        ended_ms=at_ms + round(took),
        error_type=error,
        rule=rule,
        reason=reason,
        executed="no" if outcome in (CallOutcome.DENIED, CallOutcome.FAILED) else "yes",
        attempts=1,
        size_in=chance.randint(40, 900),
        size_out=chance.randint(200, 40_000) if outcome in (CallOutcome.OK, CallOutcome.TOOL_ERROR) else 0,
    )


def _waited(chance: random.Random, row: HistoryRow) -> list[Counted]:
    """Some calls waited for an approval, most of them for less than a minute."""
    if chance.random() > 0.15 or row.outcome is not CallOutcome.OK:
        return []
    return [Counted(Dimension.WAITING, "", "", row.outcome, step_of(chance.lognormvariate(10.0, 1.0)), 1)]


def _counted(row: HistoryRow) -> list[Counted]:
    step = step_of(row.duration_ms) if row.sent_ms else NO_LATENCY
    subjects = (
        (Dimension.ALL, ""),
        (Dimension.SERVER, row.server),
        (Dimension.TOOL, f"{row.server}/{row.tool}"),
        (Dimension.CALLER, row.caller),
    )
    return [Counted(dimension, name, "", row.outcome, step, 1) for dimension, name in subjects]
