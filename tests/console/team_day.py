"""The week of a team in the history of a gateway, for pictures of the console: agents, servers, failures and a slow afternoon.

The rows are written to the store before the gateway starts, through the same port as those of calls.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

from tests.console.stage import CONFIG, Console

from taskgate.core.history.counts import NO_LATENCY, Counted, Dimension, step_of
from taskgate.core.history.row import CallOutcome, HistoryRow, RowKind
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
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def config() -> dict[str, Any]:
    """The usual stage, with all servers of the team."""
    server = CONFIG["servers"]["files"]
    broken = {"command": sys.executable, "args": ["-c", "raise SystemExit('cannot connect to maps.internal:8443')"]}
    names = {name: server for name in SERVERS if name != FAILING_SERVER}
    return {**CONFIG, "servers": {**names, FAILING_SERVER: broken}}


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
            store.add_history([row for row in calls if row.outcome is not CallOutcome.OK or hours_ago <= 48])
            for row in calls:
                store.add_counts(row.ended_ms, [*_counted(row), *_waited(chance, row)])
            await store.recorded()
    finally:
        await store.close()


async def open_calls(console: Console) -> None:
    """What is running and waiting at the moment."""
    await console.call("research-agent", "warehouse__slow_report", seconds=600)
    await console.call("build-agent", "deploy__slow_report", seconds=300)
    await console.call("research-agent", "wiki__slow_report", seconds=400)
    await console.call("build-agent", "files__delete_file", name="budget.txt")
    await console.call("research-agent", "crm__write_file", name="summary.txt", text="Three findings.")
    await console.call("build-agent", "billing__delete_file", name="invoice-2211.txt")


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
    elif luck < 0.02 and not slow:
        outcome, error, reason, took = CallOutcome.FAILED, "upstream_timeout", "no reply within 30 s", 30_000.0
    elif luck < 0.055:
        outcome = CallOutcome.TOOL_ERROR
    elif luck < 0.07 and tool in ("update_item", "merge_pull_request", "roll_back"):
        outcome, error, rule, kind = CallOutcome.DENIED, "policy_denied", "rules[2] update_*", RowKind.DENIAL
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
        size_out=chance.randint(200, 40_000),
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
