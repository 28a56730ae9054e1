"""`taskgate install`: replace a client's servers by the gateway, until `--undo`."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.import_servers import (
    CLIENT_NAMES,
    Config,
    DryRun,
    chosen_clients,
    planned,
    stop,
    write_config,
)
from taskgate.folders import user_config

if TYPE_CHECKING:
    from taskgate.config.clients.client import Client, Gateway, Host, Reach
    from taskgate.config.clients.install_plan import FileChange


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


def register(app: typer.Typer) -> None:
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
