"""`taskgate install`: replace a client's servers by the gateway, until `--undo`."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from taskgate.cli.command_line import Argument, Commands, Option, echo
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
from taskgate.cli.project_files import AllowAll, ProjectFiles
from taskgate.folders import FOUND_NAME, user_config

if TYPE_CHECKING:
    from taskgate.config.clients.client import Client, Gateway, Host, Reach
    from taskgate.config.clients.install_plan import FileChange


Name = Annotated[str, Argument(help=f"Client: {CLIENT_NAMES}.", metavar="CLIENT")]
Url = Annotated[
    str | None,
    Option("--url", help="Connect the client to a running gateway at this address instead of `taskgate stdio`."),
]
Project = Annotated[
    bool,
    Option("--project", help="Change the shared settings of this project instead of your own settings."),
]
Undo = Annotated[bool, Option("--undo", help="Restore the client's own servers.")]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    app.command("install")(install)


def install(
    *,
    client: Name,
    config: Config = None,
    url: Url = None,
    project: Project = False,
    dry_run: DryRun = False,
    yes: AllowAll = False,
    undo_it: Undo = False,
) -> None:
    """Connect a client to the gateway: its servers move to taskgate.yaml, and one entry, taskgate, replaces them."""
    from taskgate.config.clients.change_records import note_backup
    from taskgate.config.clients.client import Gateway, Host, Reach
    from taskgate.config.clients.found_servers import gather
    from taskgate.config.clients.gateway_command import gateway_command, shared_gateway_command
    from taskgate.config.load import state_directory

    (chosen,) = chosen_clients([client])
    host = Host.here()
    reach = Reach.SHARED if project else Reach.OWN
    records = state_directory(os.environ) / "installs" / (chosen.name + ("-project" if project else ""))
    if undo_it:
        _undo(chosen, records)
        return
    files = ProjectFiles(yes=yes, asks=True, is_trial=dry_run)
    # A project's gateway is configured in the project; a user's own in their configuration folder.
    usual = Path(FOUND_NAME) if project else files.configuration(config) or Path(user_config(os.environ))
    target = (config or usual).absolute()
    if project:
        _check_shared(chosen, host, target)
        if target.exists():
            files.require(target)  # others may have written it, also if it was named
    gathered = files.settings(gather([chosen], host, reach), [chosen], host, required=project)
    for note in (*gathered.notes, *(() if project else _left_alone(chosen, host))):
        echo(f"note: {note}", err=True)
    plan = planned(gathered, target)
    command = shared_gateway_command(target) if project else gateway_command(target)
    changes = _planned_changes(chosen, host, Gateway((), url) if url else Gateway(command), reach)
    echo(plan.diff(str(target)), nl=False)
    for change in changes:
        moved = [item.name for item in gathered.found if item.path == change.path]
        echo(_summary(change, moved), nl=False)
    if dry_run:
        echo("Nothing was changed.")
        return
    if plan.added:
        backup = write_config(target, plan, files)
        if backup is not None:
            note_backup(records, backup)
    for change in changes:
        _make(change, records)
    back = f"taskgate install {client}{' --project' if project else ''} --undo"
    echo(f"{chosen.title} now uses Taskgate. Restart it to apply the change. To undo: {back}")


def _left_alone(client: Client, host: Host) -> list[str]:
    """Return notes about shared files, which an installation for one user does not change."""
    from taskgate.config.clients.client import Reach
    from taskgate.config.clients.found_servers import gather

    found = gather([client], host, Reach.SHARED)
    by_file: dict[Path, list[str]] = {}
    for item in found.found:
        by_file.setdefault(item.path, []).append(item.name)
    return [
        f"{path} is shared by this project and was not changed; its servers ({', '.join(names)}) bypass the gateway. "
        f"To change it, run: taskgate install {client.name} --project"
        for path, names in by_file.items()
    ]


def _check_shared(client: Client, host: Host, target: Path) -> None:
    """Exit if the client has no shared file, or if the configuration is outside the project."""
    from taskgate.config.clients.client import Reach, places_of

    if not places_of(client, host, Reach.SHARED):
        raise stop(f"{client.title} has no project settings. Run the command without --project.")
    if target.parent != host.folder:
        raise stop(f"With --project, the configuration must be in the project folder, {host.folder}.")


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
        echo(note)
    if not notes:
        raise stop(f"Nothing to undo: {client.title} was not changed by `taskgate install`.")


def _summary(change: FileChange, moved: list[str]) -> str:
    """Summarize a change by line counts and server names; whole lines could contain secrets of the client."""
    before, after = change.before.splitlines(), change.after.splitlines()
    delta = list(difflib.ndiff(before, after)) if len(before) < 5_000 else []
    removed, added = sum(line.startswith("- ") for line in delta), sum(line.startswith("+ ") for line in delta)
    names = f"; moved to the gateway: {', '.join(moved)}" if moved else ""
    return f"{change.path}: {added} line(s) added, {removed} line(s) removed{names}\n"
