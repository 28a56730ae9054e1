"""The root command `taskgate`: lists all commands from the command table and imports only the selected one."""

from __future__ import annotations

import importlib

import click

from taskgate import __version__
from taskgate.cli.command_line import CONTEXT_SETTINGS, Commands, Context, SuggestingGroup
from taskgate.cli.command_table import COMMANDS, HEADINGS

HELP = "An MCP gateway: runs slow tool calls as durable tasks, holds risky ones for approval, and logs all of them."


class Root(SuggestingGroup):
    """The commands of the command table, under their headings."""

    def list_commands(self, ctx: Context) -> list[str]:
        return [name for name, listed in COMMANDS.items() if not listed.hidden]

    def get_command(self, ctx: Context, cmd_name: str) -> click.Command | None:
        listed = COMMANDS.get(cmd_name)
        if listed is None:
            return None
        registered = Commands()
        importlib.import_module(f"taskgate.cli.{listed.module}").register(registered)
        return registered.create(cmd_name)

    def format_commands(self, ctx: Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, listed.summary) for name, listed in commands.items() if not listed.hidden])

    def format_epilog(self, ctx: Context, formatter: click.HelpFormatter) -> None:
        from taskgate.cli.exit_codes import MEANINGS

        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code.value), meaning) for code, meaning in MEANINGS.items()])


def build_app() -> Root:
    """Return the whole command line."""
    version = click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Print the version and exit.",
    )
    return Root("taskgate", help=HELP, no_args_is_help=True, params=[version], context_settings=CONTEXT_SETTINGS)


def _print_version(ctx: Context, param: click.Parameter, given: bool) -> None:
    if given:
        click.echo(__version__)
        ctx.exit()
