"""`taskgate completion`: print a completion script for a shell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from taskgate.cli.command_line import Argument, Commands, echo
from taskgate.cli.main import COMPLETE_VARIABLE


def register(app: Commands) -> None:
    app.command("completion")(completion)


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, Argument(help="bash, zsh or fish.")]) -> None:
    """Print a completion script for your shell. Use it with: `eval "$(taskgate completion bash)"`"""
    from click.shell_completion import get_completion_class

    from taskgate.cli.root import build_app

    script = get_completion_class(shell.value)
    assert script is not None
    echo(script(build_app(), {}, "taskgate", COMPLETE_VARIABLE).source())
