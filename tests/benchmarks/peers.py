"""`make bench-peers`: Taskgate and other relays under the same load; writes docs/compare.md.

Direct connection and relays are driven in alternating rounds, and the page has the median of each figure with its ratio to the
direct connection of the same run. The relays with a program behind them use stdio, because they have no other way.

    python -m tests.benchmarks.peers [--rounds 3] [--seconds 3] [--write docs/compare.md]
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

from tests.benchmarks.relay import GENERATIONS, compare, install_relays
from tests.benchmarks.start import python_build

ROOT = Path(__file__).resolve().parents[2]
HEAD = """\
# Comparison with other relays

How Taskgate compares with other programs between MCP clients and servers. `make bench-peers` measures it and
writes this page; run it on your machine.

## Measured

Sixteen callers call a tool that returns its arguments. *direct* is the same load without a relay. CPU is that of the relay's
own process. Rows with *(stdio)* are not like the others: these relays start the server as a program and talk to it over
pipes, the only way they have in this direction, and that program is not included in their CPU time. Compare ratios of one run:
the relays, the server and the callers share the cores of one machine with other programs (see its load average). ContextForge
runs in one process with SQLite, as its package starts it, and checks a token for each call; its rate limit is switched off.
*Messages to the server* are those of one call: a relay that opens a session for each call sends several.
"""
TAIL = """
## What each does better

| program | choose it if |
|---|---|
| no relay | one client uses one server, and its calls are fast and harmless: nothing is added to a call |
| FastMCP proxy | you write servers with FastMCP and combine or transform them in the same Python process |
| ContextForge | REST and gRPC services, agents and plugins belong into the same catalog, with teams, users and their roles |
| mcp-proxy | one stdio server must be reachable over HTTP or SSE, or the reverse, with one command and no file |
| supergateway | the same with `npx` and without Python; it also serves WebSocket |
| Taskgate | several clients use several servers, and calls take long, need approval, differ in rights, or must be recorded |

Taskgate keeps calls as durable tasks, evaluates rules, asks for approval, divides tools into scopes and writes an audit log.
FastMCP's proxy, mcp-proxy and supergateway relay calls and are simpler to set up. The measured calls pass a scope and a rule;
none of them needs approval or becomes a task.

## Not measured

- mcp-hub 4.2 (npm) serves its clients only over the SSE transport of 2024, which the load generator does not support.
- mcp-gateway 1.2 (PyPI) serves one client over stdio only.
- mcpm 2.15 (PyPI) serves a profile over HTTP with FastMCP's proxy, which has a row.
- Gateways that need a container runtime, a cluster or an account are not started here.

A row for another relay from PyPI or npm
needs its pin in `tools/peers.py` and its command in `tests/benchmarks/targets.py`.
"""


def rows(figures: dict[str, dict[str, Any]]) -> list[str]:
    """Return the rows of one generation, each with its ratio to the direct connection."""
    base = figures["direct"]
    lines = [
        "| target | calls/s | of direct | p50 ms | p99 ms | CPU ms per call | messages to the server | errors |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in figures.items():
        share = row["per_second"] / base["per_second"] if base["per_second"] else 0.0
        cpu = "" if row.get("cpu_ms") is None else f"{row['cpu_ms']:.3f}"
        # A relay over stdio starts another server, whose messages are not counted.
        sent = "" if "(stdio)" in name else f"{row['upstream_messages'] or 0:.1f}"
        lines.append(
            f"| {name} | {row['per_second']:.0f} | {share:.2f} | {row['p50_ms']:.2f} | {row['p99_ms']:.2f} | {cpu} "
            f"| {sent} | {row['errors'] or 0:.0f} |"
        )
    return lines


def page(results: dict[str, dict[str, dict[str, Any]]], conditions: str) -> str:
    parts = [HEAD, f"{conditions}\n"]
    for generation, figures in results.items():
        version = {"2025": "MCP 2025-11-25", "2026": "MCP 2026-07-28"}[generation]
        parts.append("\n".join([f"### {version}", "", *rows(figures), ""]))
    return "\n".join(parts) + TAIL


async def main() -> None:
    parser = argparse.ArgumentParser(description="Compare Taskgate with other relays.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--write", type=Path, help="also write the page to this file")
    chosen = parser.parse_args()
    install_relays()
    load = os.getloadavg()[0]
    results = {generation: await compare(generation, chosen.rounds, chosen.seconds) for generation in GENERATIONS}
    conditions = (
        f"{python_build()}; {os.cpu_count()} cores, load average {load:.1f} at the start; median of {chosen.rounds} rounds of "
        f"{chosen.seconds:g} s."
    )
    text = page(results, conditions)
    print(text)
    if chosen.write is not None:
        chosen.write.write_text(text)


if __name__ == "__main__":
    asyncio.run(main())
