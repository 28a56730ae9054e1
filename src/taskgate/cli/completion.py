"""`taskgate completion`: print a completion script for a shell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from taskgate.cli.main import COMPLETE_VARIABLE


def register(app: typer.Typer) -> None:
    app.command("completion")(completion)


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print a completion script for your shell. Use it with: `eval "$(taskgate completion bash)"`"""
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="taskgate", complete_var=COMPLETE_VARIABLE, shell=shell.value))
