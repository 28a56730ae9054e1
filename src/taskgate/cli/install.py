"""`taskgate import`, `install` and `wrap`: the gateway in front of the servers that other clients use."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from taskgate.cli.say import ExitCode
from taskgate.cli.target import Json
from taskgate.folders import user_config

if TYPE_CHECKING:
    from taskgate.config.clients.client import Client, Gateway, Host, Reach
    from taskgate.config.clients.found_servers import Gathered
    from taskgate.config.clients.import_plan import ImportPlan
    from taskgate.config.clients.install_plan import FileChange

# `taskgate import`: take the servers that other clients already use into `taskgate.yaml`.

CLIENT_NAMES = "claude-code, claude-desktop, cursor, vscode, codex, zed, windsurf, opencode, cline"
Names = Annotated[
    list[str] | None, typer.Argument(help=f"Clients to read: {CLIENT_NAMES}. Default: all.", metavar="CLIENT")
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="File to write; default: the one that serve finds.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]


def register_import_clients(app: typer.Typer) -> None:
    """Put the command on the application."""
    app.command("import")(import_servers)


def import_servers(
    clients: Names = None, config: Config = None, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Copy the servers of Claude Code, Cursor, VS Code and others into taskgate.yaml. Their files stay as they are."""
    from taskgate.config.clients.client import Host
    from taskgate.config.clients.found_servers import gather
    from taskgate.config.load import find

    chosen = chosen_clients(clients)
    target = config or find() or Path("taskgate.yaml")
    gathered = gather(chosen, Host.here())
    plan = planned(gathered, target)
    changed = bool(plan.added) and not dry_run
    if changed:
        write_config(target, plan)
    if as_json:
        typer.echo(json.dumps(_answer(plan, gathered, target, changed=changed), ensure_ascii=False))
    else:
        _tell(plan, gathered, target, changed=changed)


def chosen_clients(names: list[str] | None) -> list[Client]:
    """The clients of these names, or all."""
    from taskgate.config.clients.known import CLIENTS, UnknownClient, client_named

    try:
        return [client_named(name) for name in names] if names else list(CLIENTS.values())
    except UnknownClient as error:
        raise stop(str(error)) from None


def planned(gathered: Gathered, target: Path) -> ImportPlan:
    """The change to the file, or the end of the command with a reason."""
    from taskgate.config.clients.found_servers import read_settings
    from taskgate.config.clients.import_plan import CannotImport, plan_import
    from taskgate.config.clients.settings_text import SettingsError

    try:
        return plan_import(gathered.found, read_settings(target), str(target))
    except (CannotImport, SettingsError) as error:
        raise stop(str(error)) from None


def write_config(target: Path, plan: ImportPlan) -> Path | None:
    """Write the file and return the copy that is kept of what was there. New files may hold secrets: they are their owner's."""
    from taskgate.config.clients.change_records import backup_of, write_file

    backup = backup_of(target) if target.exists() else None
    if backup is not None:
        write_file(backup, plan.before, mode=0o600)
    write_file(target, plan.after)
    return backup


def stop(message: str, code: ExitCode = ExitCode.USAGE) -> typer.Exit:
    """Say why on stderr; the value is raised by the caller."""
    typer.echo(message, err=True)
    return typer.Exit(code)


def _answer(plan: ImportPlan, gathered: Gathered, target: Path, *, changed: bool) -> dict[str, object]:
    return {
        "file": str(target),
        "changed": changed,
        "added": [{"id": k, "client": item.client, "from": str(item.path)} for k, item in plan.added.items()],
        "passed_over": [{"name": item.name, "client": item.client, "reason": why} for item, why in plan.passed_over],
        "notes": gathered.notes,
        "read": [str(path) for path in gathered.files],
    }


def _tell(plan: ImportPlan, gathered: Gathered, target: Path, *, changed: bool) -> None:
    for note in gathered.notes:
        typer.echo(f"note: {note}", err=True)
    if not gathered.files:
        typer.echo("No client settings found on this machine.")
        return
    typer.echo(plan.diff(str(target)), nl=False)
    for item, reason in plan.passed_over:
        typer.echo(f'"{item.name}" of {item.client} passed over: {reason}')
    if changed:
        typer.echo(f"Wrote {len(plan.added)} server(s) to {target}. Next: taskgate check -c {target}")
    elif plan.added:
        typer.echo(f"Nothing was changed. Without --dry-run, {len(plan.added)} server(s) go into {target}.")
    else:
        typer.echo("Nothing new to take over.")


Name = Annotated[str, typer.Argument(help=f"One of {CLIENT_NAMES}.", metavar="CLIENT")]
Url = Annotated[
    str | None, typer.Option("--url", help="Reach a running gateway at this address instead of starting one.")
]
Project = Annotated[
    bool,
    typer.Option(
        "--project", help="Change the project's shared file, for everybody who has it, instead of your own settings."
    ),
]
Undo = Annotated[bool, typer.Option("--undo", help="Put the client's own servers back.")]


def register_install(app: typer.Typer) -> None:
    """Put the command on the application."""
    app.command("install")(install)


def install(
    *,
    client: Name,
    config: Config = None,
    url: Url = None,
    project: Project = False,
    dry_run: DryRun = False,
    undo_it: Undo = False,
) -> None:
    """Put the gateway in front of a client: its servers move to taskgate.yaml, and one entry, taskgate, replaces them."""
    from taskgate.config.clients.change_records import note_backup
    from taskgate.config.clients.client import Gateway, Host, Reach
    from taskgate.config.clients.found_servers import gather
    from taskgate.config.clients.gateway_command import gateway_command, shared_gateway_command
    from taskgate.config.load import find, state_directory

    (chosen,) = chosen_clients([client])
    host = Host.here()
    reach = Reach.SHARED if project else Reach.OWN
    records = state_directory(os.environ) / "installs" / (chosen.name + ("-project" if project else ""))
    if undo_it:
        _undo(chosen, records)
        return
    # A project's gateway is configured in the project; a person's own in their configuration folder, wherever the command is run.
    usual = Path("taskgate.yaml") if project else find() or Path(user_config(os.environ))
    target = (config or usual).absolute()
    gathered = gather([chosen], host, reach)
    for note in (*gathered.notes, *(() if project else _left_alone(chosen, host))):
        typer.echo(f"note: {note}", err=True)
    if project:
        _check_shared(chosen, host, target)
    plan = planned(gathered, target)
    command = shared_gateway_command(target) if project else gateway_command(target)
    changes = _planned_changes(chosen, host, Gateway((), url) if url else Gateway(command), reach)
    typer.echo(plan.diff(str(target)), nl=False)
    for change in changes:
        moved = [item.name for item in gathered.found if item.path == change.path]
        typer.echo(_summary(change, moved), nl=False)
    if dry_run:
        typer.echo("Nothing was changed.")
        return
    if plan.added:
        backup = write_config(target, plan)
        if backup is not None:
            note_backup(records, backup)
    for change in changes:
        _make(change, records)
    back = f"taskgate install {client}{' --project' if project else ''} --undo"
    typer.echo(f"{chosen.title} now talks to Taskgate. Restart it; `{back}` takes this back.")


def _left_alone(client: Client, host: Host) -> list[str]:
    """The servers of shared files, which an installation for one user does not touch."""
    from taskgate.config.clients.client import Reach
    from taskgate.config.clients.found_servers import gather

    found = gather([client], host, Reach.SHARED)
    by_file: dict[Path, list[str]] = {}
    for item in found.found:
        by_file.setdefault(item.path, []).append(item.name)
    return [
        f"{path} is shared with everybody who works on this project, so it stays as it is; its servers "
        f"({', '.join(names)}) do not pass the gateway. `taskgate install {client.name} --project` changes it."
        for path, names in by_file.items()
    ]


def _check_shared(client: Client, host: Host, target: Path) -> None:
    """What goes into a shared file must mean the same for everybody who has it."""
    from taskgate.config.clients.client import Reach, places_of

    if not places_of(client, host, Reach.SHARED):
        raise stop(f"{client.title} has no file that belongs to a project.")
    if target.parent != host.folder:
        raise stop(f"A shared file can only lead to a taskgate.yaml of the project's own folder, {host.folder}.")


def _planned_changes(client: Client, host: Host, gateway: Gateway, reach: Reach) -> list[FileChange]:
    from taskgate.config.clients.client import CannotInstall
    from taskgate.config.clients.install_plan import AlreadyInFront, plan_takeover
    from taskgate.config.clients.settings_text import SettingsError

    try:
        return plan_takeover(client, host, gateway, reach)
    except (AlreadyInFront, CannotInstall, SettingsError) as error:
        raise stop(str(error)) from None


def _make(change: FileChange, records: Path) -> None:
    from taskgate.config.clients.change_records import backup_of, keep_record, write_file

    keep_record(records, change)
    if change.existed:
        write_file(backup_of(change.path), change.before, mode=0o600)
    write_file(change.path, change.after)


def _undo(client: Client, records: Path) -> None:
    from taskgate.config.clients.change_records import undo
    from taskgate.config.clients.settings_text import SettingsError

    try:
        notes = undo(records)
    except SettingsError as error:
        raise stop(str(error), ExitCode.FAILED) from None
    for note in notes:
        typer.echo(note)
    if not notes:
        raise stop(f"{client.title} was not installed by Taskgate; there is nothing to undo")


def _summary(change: FileChange, moved: list[str]) -> str:
    """How much changes, and which servers go; whole lines could show secrets of the client."""
    before, after = change.before.splitlines(), change.after.splitlines()
    delta = list(difflib.ndiff(before, after)) if len(before) < 5_000 else []
    gone, come = sum(line.startswith("- ") for line in delta), sum(line.startswith("+ ") for line in delta)
    names = f"; its servers {', '.join(moved)} go behind the gateway" if moved else ""
    return f"{change.path}: {come} line(s) in, {gone} line(s) out{names}\n"


# `taskgate wrap -- AGENT`: run an agent with the gateway in front of its servers, and put everything back afterwards.
#
# Put back on a normal end, on SIGTERM, SIGHUP and SIGINT, and, after a crash of this process, at the next start of the
# command.

Agent = Annotated[list[str] | None, typer.Argument(help="The agent and its arguments, after --.", metavar="-- AGENT")]
ClientName = Annotated[
    str | None, typer.Option("--client", help="Whose settings the agent uses; default: told by its name.")
]
WrapConfig = Annotated[
    Path | None, typer.Option("--config", "-c", help="Rules and further servers; default: the file serve finds.")
]
Recover = Annotated[bool, typer.Option("--recover", help="Only put back what a crash left behind.")]
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def register_wrap(app: typer.Typer) -> None:
    """Put the command on the application."""
    app.command("wrap", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(wrap)


def wrap(
    agent: Agent = None, client: ClientName = None, config: WrapConfig = None, recover_only: Recover = False
) -> None:
    """Run an agent with the gateway in front of its servers; its settings are put back when it ends."""
    from taskgate.config.clients.takeover import recover
    from taskgate.config.load import find, state_directory

    folder = state_directory(os.environ) / "wraps"
    for note in recover(folder):
        typer.echo(note, err=True)
    if recover_only:
        return
    if not agent:
        raise stop("Name the agent to run: taskgate wrap -- claude")
    program = shutil.which(agent[0])
    if program is None:
        raise stop(f'"{agent[0]}" was not found; give the path of the program')
    changes = _planned(_client(agent[0], client), config or find(), folder)
    raise typer.Exit(_run_in_front([program, *agent[1:]], changes, folder))


def _client(program: str, name: str | None) -> Client:
    from taskgate.config.clients.known import UnknownClient, client_named, client_of_program

    try:
        return client_named(name) if name else client_of_program(program)
    except UnknownClient as error:
        raise stop(str(error)) from None


def _planned(client: Client, config: Path | None, folder: Path) -> list[FileChange]:
    from taskgate.config.clients.client import CannotInstall, Host, Reach
    from taskgate.config.clients.found_servers import gather
    from taskgate.config.clients.import_plan import CannotImport
    from taskgate.config.clients.install_plan import AlreadyInFront
    from taskgate.config.clients.settings_text import SettingsError
    from taskgate.config.clients.wrap_plan import NothingToWrap, plan_wrap

    host = Host.here()
    shared = dict.fromkeys(item.path for item in gather([client], host, Reach.SHARED).found)
    until = "is shared; its servers are taken out while the agent runs and put back afterwards, so do not commit it meanwhile"
    for note in (*gather([client], host).notes, *(f"{path} {until}" for path in shared)):
        typer.echo(f"note: {note}", err=True)
    try:
        return plan_wrap(client, host, config, folder)
    except (AlreadyInFront, CannotImport, CannotInstall, NothingToWrap, SettingsError) as error:
        raise stop(str(error)) from None


class _Signalled(BaseException):
    """A signal came while there was no agent to pass it to."""

    def __init__(self, number: int) -> None:
        self.number = number


def _run_in_front(command: list[str], changes: list[FileChange], folder: Path) -> int:
    from taskgate.config.clients.takeover import AlreadyWrapped, Takeover

    takeover = Takeover(folder)
    runner = _Runner()
    for number in _SIGNALS:
        signal.signal(number, runner.on_signal)
    try:
        takeover.begin(changes)
        return runner.run(command)
    except AlreadyWrapped as error:
        raise stop(str(error)) from None
    except _Signalled as signalled:
        return 128 + signalled.number
    finally:
        # Nothing may interrupt the putting back, not even an impatient second Ctrl-C.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for note in takeover.end():
            typer.echo(note, err=True)


class _Runner:
    """One agent process, and what signals mean for it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: list[str]) -> int:
        self._process = subprocess.Popen(command)
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            raise _Signalled(number)
        # On a terminal Ctrl-C has reached the agent already; it decides what it means.
        if number != signal.SIGINT or not sys.stdin.isatty():
            self._process.send_signal(number)


def register(app: typer.Typer) -> None:
    register_import_clients(app)
    register_install(app)
    register_wrap(app)
