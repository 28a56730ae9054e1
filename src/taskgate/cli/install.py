"""`taskgate install CLIENT`: the gateway in front of a client's servers for good, and `--undo`."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taskgate.cli.import_clients import CLIENT_NAMES, Config, DryRun, chosen_clients, planned, stop, write_config
from taskgate.cli.say import ExitCode

if TYPE_CHECKING:
    from taskgate.config.clients.client import Client, Gateway, Host
    from taskgate.config.clients.plans import FileChange

Name = Annotated[str, typer.Argument(help=f"One of {CLIENT_NAMES}.", metavar="CLIENT")]
Url = Annotated[
    str | None, typer.Option("--url", help="Reach a running gateway at this address instead of starting one.")
]
Undo = Annotated[bool, typer.Option("--undo", help="Put the client's own servers back.")]


def register(app: typer.Typer) -> None:
    """Put the command on the application."""
    app.command("install")(install)


def install(
    client: Name, config: Config = None, url: Url = None, dry_run: DryRun = False, undo_it: Undo = False
) -> None:
    """Put the gateway in front of a client: its servers move to taskgate.yaml, and one entry, taskgate, replaces them."""
    from taskgate.config.clients.client import Gateway, Host, gateway_command
    from taskgate.config.clients.plans import gather
    from taskgate.config.load import find, state_directory

    (chosen,) = chosen_clients([client])
    host = Host.here()
    records = state_directory(os.environ) / "installs" / chosen.name
    if undo_it:
        _undo(chosen, records)
        return
    target = (config or find() or Path("taskgate.yaml")).absolute()
    gathered = gather([chosen], host)
    for note in gathered.notes:
        typer.echo(f"note: {note}", err=True)
    plan = planned(gathered, target)
    changes = _planned_changes(chosen, host, Gateway((), url) if url else Gateway(gateway_command(target)))
    typer.echo(plan.diff(str(target)), nl=False)
    for change in changes:
        typer.echo(_summary(change), nl=False)
    if dry_run:
        typer.echo("Nothing was changed.")
        return
    if plan.added:
        write_config(target, plan)
    for change in changes:
        _make(change, records)
    typer.echo(f"{chosen.title} now talks to Taskgate. Restart it; `taskgate install {client} --undo` takes this back.")


def _planned_changes(client: Client, host: Host, gateway: Gateway) -> list[FileChange]:
    from taskgate.config.clients.client import CannotInstall
    from taskgate.config.clients.plans import AlreadyInFront, plan_takeover
    from taskgate.config.clients.settings_text import SettingsError

    try:
        return plan_takeover(client, host, gateway)
    except (AlreadyInFront, CannotInstall, SettingsError) as error:
        raise stop(str(error)) from None


def _make(change: FileChange, records: Path) -> None:
    from taskgate.config.clients.takeover import BACKUP_ENDING, keep_record, write_file

    keep_record(records, change)
    if change.existed:
        write_file(change.path.with_name(change.path.name + BACKUP_ENDING), change.before, mode=0o600)
    write_file(change.path, change.after)


def _undo(client: Client, records: Path) -> None:
    from taskgate.config.clients.settings_text import SettingsError
    from taskgate.config.clients.takeover import undo

    try:
        notes = undo(records)
    except SettingsError as error:
        raise stop(str(error), ExitCode.FAILED) from None
    for note in notes:
        typer.echo(note)
    if not notes:
        raise stop(f"{client.title} was not installed by Taskgate; there is nothing to undo")


def _summary(change: FileChange) -> str:
    """The names that come and go; whole lines could show secrets of the client."""
    before, after = change.before.splitlines(), change.after.splitlines()
    delta = list(difflib.ndiff(before, after)) if len(before) < 5_000 else []
    gone, come = sum(line.startswith("- ") for line in delta), sum(line.startswith("+ ") for line in delta)
    return f"{change.path}: {come} line(s) in, {gone} line(s) out\n"
