"""The `taskgate` command: collects the commands, one file each. Commands import what they need when they run."""

from __future__ import annotations

import importlib
import sys

import typer

from taskgate import __version__
from taskgate.cli.exit_codes import MEANINGS

COMMANDS = (
    "serve",
    "demo",
    "doctor",
    "import_clients",
    "install",
    "wrap",
    "approvals",
    "questions",
    "tools",
    "call",
    "tasks",
    "scopes",
    "token",
    "pins",
    "audit",
    "policy",
)


def _epilog() -> str:
    return "Exit codes: " + "; ".join(f"{code.value} {text}" for code, text in MEANINGS.items()) + "."


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="taskgate",
        help="An MCP gateway that makes every tool call long-running-safe, governed, scoped and observable.",
        epilog=_epilog(),
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
        if version:
            print(__version__)
            raise typer.Exit

    for name in COMMANDS:
        importlib.import_module(f"taskgate.cli.{name}").register(app)
    return app


def main() -> None:
    build_app()(sys.argv[1:])
