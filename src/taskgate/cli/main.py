"""The `taskgate` command. Each command is a module of this package and imports its dependencies when it runs.

`taskgate stdio` is handled first, without loading the other commands, because every client starts one.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from taskgate import __version__

if TYPE_CHECKING:
    import typer

OLDEST_PYTHON = (3, 11)
DEBUG_VARIABLE = "TASKGATE_DEBUG"
COMPLETE_VARIABLE = "_TASKGATE_COMPLETE"
USAGE, INTERNAL = 2, 70
# Modules of this package and the commands that each registers, by heading of `taskgate --help`.
COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "Run the gateway": {
        "init": ("init", "schema"),
        "completion": ("completion",),
        "demo": ("demo",),
        "serve": ("serve", "stdio"),
        "check": ("check",),
        "gateways": ("status", "stop", "reload"),
        "doctor": ("doctor",),
    },
    "Connect your agents": {"import_servers": ("import",), "install": ("install",), "wrap": ("wrap",)},
    "Use tools": {"tools": ("tools",), "call": ("call",), "tasks": ("tasks",)},
    "Approve and answer": {
        "approvals": ("approvals",),
        "grants": ("grants",),
        "pins": ("pins",),
        "questions": ("questions",),
    },
    "Administer": {
        "scopes": ("scopes",),
        "policy": ("policy",),
        "tokens": ("tokens", "token"),
        "usage": ("usage",),
        "data": ("data",),
        "servers": ("servers",),
        "store": ("store",),
        "audit": ("audit",),
    },
}


def _epilog() -> str:
    from taskgate.cli.exit_codes import MEANINGS

    return "Exit codes: " + "; ".join(f"{code.value} {text}" for code, text in MEANINGS.items()) + "."


def build_app(only: str = "") -> typer.Typer:
    """Return the whole command line, or only the commands of one module."""
    import importlib

    import typer

    app = typer.Typer(
        name="taskgate",
        help="An MCP gateway: runs slow tool calls as durable tasks, holds risky ones for approval, and logs all of them.",
        epilog=_epilog(),
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            print(__version__)
            raise typer.Exit

    if os.environ.get(COMPLETE_VARIABLE):
        from typer._completion_classes import completion_init

        completion_init()
    for heading, names in COMMANDS.items():
        known = len(app.registered_commands), len(app.registered_groups)
        for name in [name for name in names if not only or name == only]:
            importlib.import_module(f"taskgate.cli.{name}").register(app)
        for command in app.registered_commands[known[0] :]:
            command.rich_help_panel = heading
        for group in app.registered_groups[known[1] :]:
            group.rich_help_panel = heading
    return app


def module_of(arguments: list[str]) -> str:
    """Return the module of a command, because loading all commands takes longer than most of them run.

    Returns an empty string if all are needed: for shell completion, and to suggest similar commands.
    """
    files = {command: file for files in COMMANDS.values() for file, commands in files.items() for command in commands}
    return files.get(arguments[0], "") if arguments and not os.environ.get(COMPLETE_VARIABLE) else ""


def main() -> None:
    if sys.version_info < OLDEST_PYTHON:
        found, needed = (".".join(map(str, version[:2])) for version in (sys.version_info, OLDEST_PYTHON))
        sys.exit(_failed(f"Taskgate needs Python {needed} or newer; {sys.executable} is {found}.", USAGE))
    arguments = sys.argv[1:]
    # Imports create almost no garbage, and collecting it takes a tenth of the start time.
    gc.set_threshold(100_000, 20, 20)
    try:
        if arguments[:1] == ["stdio"]:
            from taskgate.bridge.main import bridge, options

            given = options(arguments[1:])
            if given is not None:
                sys.exit(bridge(given.get("config"), given.get("scope")))
        build_app(module_of(arguments))(arguments)
    except Exception as fault:  # around a whole command: print one sentence, and the traceback on request
        import traceback

        from taskgate.telemetry.logs import log

        if os.environ.get(DEBUG_VARIABLE):
            sys.exit(_failed(log.without_secrets("".join(traceback.format_exception(fault))), INTERNAL))
        why = log.without_secrets(f"{type(fault).__name__}: {fault}".rstrip(": "))
        sys.exit(_failed(f"Internal error: {why}. Set {DEBUG_VARIABLE}=1 for the traceback, and report it.", INTERNAL))


def _failed(why: str, code: int) -> int:
    sys.stderr.write(f"taskgate: {why}\n")
    return code
