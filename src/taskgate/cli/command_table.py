"""All commands of `taskgate`: their headings in `taskgate --help`, their modules and their summaries.

Only data, so that listing the commands imports none of them. `tests/cli/test_command_table.py` compares it with what the modules
register.
"""

from __future__ import annotations

from typing import NamedTuple


class Listed(NamedTuple):
    """One command or group of commands."""

    module: str
    """Module in `taskgate.cli` whose `register` adds the command."""
    summary: str
    hidden: bool = False


HEADINGS: dict[str, dict[str, Listed]] = {
    "Run the gateway": {
        "init": Listed("init", "Create a configuration from the clients found on this machine."),
        "schema": Listed("init", "Print the JSON schema of the configuration, for editors."),
        "completion": Listed("completion", "Print a completion script for your shell."),
        "demo": Listed("demo", "Start a demo gateway and show four features."),
        "serve": Listed("serve", "Serve the gateway over HTTP."),
        "stdio": Listed("serve", "Serve on standard input and output, for clients that start their servers."),
        "check": Listed("check", "Check the configuration without starting the gateway."),
        "status": Listed("gateways", "List your running gateways."),
        "stop": Listed("gateways", "Stop the gateways that clients started."),
        "reload": Listed("gateways", "Reload the configuration of a running gateway."),
        "doctor": Listed("doctor", "Check versions, configuration, store, port and servers; suggest fixes."),
    },
    "Connect your agents": {
        "allow": Listed("allow", "Allow a project's taskgate.yaml for clients that start there."),
        "import": Listed("import_servers", "Copy the servers of your MCP clients into the configuration."),
        "install": Listed("install", "Put the gateway between a client and its servers."),
        "wrap": Listed("wrap", "Run an agent with the gateway in front of its servers."),
    },
    "Use tools": {
        "tools": Listed("tools", "List the tools of a gateway or server."),
        "call": Listed("call", "Call a tool of a gateway or server."),
        "run": Listed("run_script", "Run a script of tool calls at a gateway."),
        "tasks": Listed("tasks", "List, follow and cancel tasks."),
        "scripts": Listed("scripts", "List and stop scripts of all callers."),
        "history": Listed("history", "Search calls that have ended."),
    },
    "Approve and answer": {
        "approvals": Listed("approvals", "List and decide calls that wait for approval."),
        "grants": Listed("grants", "List and revoke standing grants (approvals for a limited time)."),
        "pins": Listed("pins", "List and accept changed definitions of tools, apps and skills."),
        "questions": Listed("questions", "List and answer open questions of servers."),
    },
    "Administer": {
        "scopes": Listed("scopes", "List each scope's tools, and why others are excluded."),
        "policy": Listed("policy", "Test rules and policies before applying them."),
        "tokens": Listed("tokens", "Create, list and revoke tokens of callers and approvers."),
        "token": Listed("tokens", "Another name of `tokens`.", hidden=True),
        "usage": Listed("usage", "Show calls, errors, durations and costs by caller, tool and server."),
        "data": Listed("data", "Export or erase the stored data of one principal."),
        "servers": Listed("servers", "Manage servers, and log in to those that require OAuth."),
        "store": Listed("store", "Check, migrate and copy the store, or declare it restored."),
        "audit": Listed("audit", "Search, verify and export the audit log."),
    },
}
COMMANDS: dict[str, Listed] = {name: listed for commands in HEADINGS.values() for name, listed in commands.items()}
