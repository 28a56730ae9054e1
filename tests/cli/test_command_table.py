"""The command table lists what the modules register: `taskgate --help` prints it without importing them."""

from __future__ import annotations

import importlib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from taskgate import cli
from taskgate.cli.command_line import Commands
from taskgate.cli.command_table import COMMANDS, HEADINGS
from taskgate.cli.root import build_app

MODULES = sorted({listed.module for listed in COMMANDS.values()})


@pytest.mark.parametrize("module", MODULES)
def test_module_registers_the_commands_that_the_table_lists(module: str) -> None:
    registered = Commands()
    importlib.import_module(f"taskgate.cli.{module}").register(registered)
    assert sorted(registered.names) == sorted(name for name, listed in COMMANDS.items() if listed.module == module)


def test_table_lists_every_module_with_commands() -> None:
    registering = [
        file.stem for file in Path(cli.__file__).parent.glob("*.py") if "def register(app" in file.read_text()
    ]
    assert sorted(registering) == MODULES


def test_commands_are_hidden_as_listed() -> None:
    app = build_app()
    created = {name: app.get_command(click.Context(app), name) for name in COMMANDS}
    assert {name: command.hidden for name, command in created.items() if command is not None} == {
        name: listed.hidden for name, listed in COMMANDS.items()
    }


def test_help_lists_every_command_under_its_heading() -> None:
    shown = CliRunner().invoke(build_app(), ["--help"], terminal_width=200).stdout
    for heading, commands in HEADINGS.items():
        section = shown.split(f"\n{heading}:\n")[1].split("\n\n")[0]
        names = [line.split()[0] for line in section.splitlines()]
        assert names == [name for name, listed in commands.items() if not listed.hidden]


def test_unknown_command_error_suggests_a_similar_one() -> None:
    for arguments, similar in (["taks"], "tasks"), (["tasks", "lsit"], "list"):
        done = CliRunner().invoke(build_app(), arguments)
        assert (done.exit_code, similar in done.stderr) == (2, True)


def leaves(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    """All commands below this one that are no groups, with the words that select them."""
    if not isinstance(command, click.Group):
        return [(name, command)]
    context = click.Context(command)
    children = [(child, command.get_command(context, child)) for child in command.list_commands(context)]
    return [
        leaf for child, found in children if found is not None for leaf in leaves(found, f"{name} {child}".lstrip())
    ]


def test_a_missing_argument_or_option_is_named_before_the_command_runs() -> None:
    required = [words for words, command in leaves(build_app(), "") if any(param.required for param in command.params)]
    assert {"call", "approvals approve", "tasks result", "data erase"} <= set(required)
    for words in required:
        done = CliRunner().invoke(build_app(), words.split())
        assert (words, done.exit_code, "Missing " in done.stderr) == (words, 2, True)


def test_every_option_and_argument_is_described() -> None:
    found = leaves(build_app(), "taskgate")
    assert len(found) > 50
    without = [
        f"{name} {parameter.name}"
        for name, command in found
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
        and not getattr(parameter, "description", getattr(parameter, "help", ""))
    ]
    assert without == []


def test_help_shows_no_range_for_a_number_without_limits() -> None:
    shown = CliRunner().invoke(build_app(), ["approvals", "approve", "--help"], terminal_width=200)
    assert shown.exit_code == 0
    assert "--grant MINUTES" in shown.stdout
    assert "None" not in shown.stdout
