"""`taskgate wrap -- AGENT`: run an agent behind the gateway, and restore its settings afterwards.

Restored on a normal end, on SIGTERM, SIGHUP and SIGINT, and, after a crash of this process, by the next `taskgate wrap`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

from taskgate.cli.command_line import Argument, Commands, Exit, Option, echo
from taskgate.cli.import_servers import stop
from taskgate.cli.project_files import ProjectFiles

if TYPE_CHECKING:
    from taskgate.config.clients.client import Client
    from taskgate.config.clients.install_plan import FileChange


Agent = Annotated[list[str] | None, Argument(help="Agent program and its arguments, after --.", metavar="-- AGENT")]
ClientName = Annotated[
    str | None, Option("--client", help="Client whose settings the agent uses. Default: from the program name.")
]
WrapConfig = Annotated[
    Path | None,
    Option("--config", "-c", help="Configuration with rules and further servers. Default: the file that `serve` uses."),
]
Yes = Annotated[bool, Option("--yes", help="Allow the files of this project that are used, without a question.")]
Recover = Annotated[bool, Option("--recover", help="Only restore settings that a crash left changed.")]
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def register(app: Commands) -> None:
    """Add the commands to the application."""
    app.command("wrap", settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(wrap)


def wrap(
    agent: Agent = None,
    client: ClientName = None,
    config: WrapConfig = None,
    yes: Yes = False,
    recover_only: Recover = False,
) -> None:
    """Run an agent behind the gateway, for example `taskgate wrap -- claude`. Its settings are restored when it exits."""
    from taskgate.config.clients.takeover import recover
    from taskgate.config.load import state_directory

    folder = state_directory(os.environ) / "wraps"
    for note in recover(folder):
        echo(note, err=True)
    if recover_only:
        return
    if not agent:
        raise stop("No agent given. Write for example: taskgate wrap -- claude")
    program = shutil.which(agent[0])
    if program is None:
        raise stop(f'"{agent[0]}" was not found on PATH. Write the full path of the program.')
    files = ProjectFiles(yes=yes, asks=True)
    changes = _planned(_client(agent[0], client), files.configuration(config), folder, files)
    raise Exit(_run_in_front([program, *agent[1:]], changes, folder))


def _client(program: str, name: str | None) -> Client:
    from taskgate.config.clients.known import UnknownClient, client_named, client_of_program

    try:
        return client_named(name) if name else client_of_program(program)
    except UnknownClient as error:
        raise stop(str(error)) from None


def _planned(client: Client, config: Path | None, folder: Path, files: ProjectFiles) -> list[FileChange]:
    from taskgate.config.clients.client import CannotInstall, Host, Reach
    from taskgate.config.clients.found_servers import gather
    from taskgate.config.clients.import_plan import CannotImport
    from taskgate.config.clients.install_plan import AlreadyInFront
    from taskgate.config.clients.settings_text import SettingsError
    from taskgate.config.clients.wrap_plan import NothingToWrap, plan_wrap

    host = Host.here()
    shared = dict.fromkeys(item.path for item in gather([client], host, Reach.SHARED).found)
    until = "is shared by this project; it is changed while the agent runs and restored afterwards, so do not commit it meanwhile"
    gathered = files.settings(gather([client], host), [client], host)
    for note in (*gathered.notes, *(f"{path} {until}" for path in shared)):
        echo(f"note: {note}", err=True)
    try:
        return plan_wrap(client, host, gathered, config, folder)
    except (AlreadyInFront, CannotImport, CannotInstall, NothingToWrap, SettingsError) as error:
        raise stop(str(error)) from None


class _Signalled(BaseException):
    """A signal arrived before the agent was started."""

    def __init__(self, number: int) -> None:
        self.number = number


def _run_in_front(command: list[str], changes: list[FileChange], folder: Path) -> int:
    from taskgate.config.clients.takeover import AlreadyWrapped, Takeover

    takeover = Takeover(folder)
    runner = _Runner()
    before = {number: signal.signal(number, runner.on_signal) for number in _SIGNALS}
    try:
        takeover.begin(changes)
        return runner.run(command)
    except AlreadyWrapped as error:
        raise stop(str(error)) from None
    except _Signalled as signalled:
        return 128 + signalled.number
    finally:
        # Ignore signals, such as a second Ctrl-C, while the settings are restored.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for note in takeover.end():
            echo(note, err=True)
        for number, handler in before.items():
            signal.signal(number, handler)


class _Runner:
    """Runs the agent process and forwards signals to it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: list[str]) -> int:
        self._process = subprocess.Popen(command)
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            raise _Signalled(number)
        # On a terminal, Ctrl-C already reached the agent's process group.
        if number != signal.SIGINT or not sys.stdin.isatty():
            self._process.send_signal(number)
