"""`taskgate import`: add the servers of other clients to `taskgate.yaml`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from taskgate.cli.command_line import Argument, Commands, Failed, Option, echo
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.project_files import AllowAll, ProjectFiles
from taskgate.cli.target import Json
from taskgate.folders import FOUND_NAME

if TYPE_CHECKING:
    from taskgate.config.clients.client import Client
    from taskgate.config.clients.found_servers import Gathered
    from taskgate.config.clients.import_plan import ImportPlan


CLIENT_NAMES = "claude-code, claude-desktop, cursor, vscode, codex, zed, windsurf, opencode, cline"
Names = Annotated[list[str] | None, Argument(help=f"Clients: {CLIENT_NAMES}. Default: all.", metavar="[CLIENT]...")]
Config = Annotated[
    Path | None,
    Option("--config", "-c", help="Configuration file to change. Default: the file that `serve` uses."),
]
DryRun = Annotated[bool, Option("--dry-run", help="Show the changes without applying them.")]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    app.command("import")(import_servers)


def import_servers(
    clients: Names = None,
    config: Config = None,
    dry_run: DryRun = False,
    yes: AllowAll = False,
    as_json: Json = False,
) -> None:
    """Copy the servers of Claude Code, Cursor, VS Code and other clients to taskgate.yaml. Their settings are not changed.

    Servers in the settings of a project are copied after they were allowed: at a question, with --yes or with `taskgate allow`.
    """
    from taskgate.config.clients.client import Host
    from taskgate.config.clients.found_servers import gather

    chosen, host = chosen_clients(clients), Host.here()
    files = ProjectFiles(yes=yes, asks=not as_json, is_trial=dry_run)
    target = files.configuration(config) or Path(FOUND_NAME)
    gathered = files.settings(gather(chosen, host), chosen, host)
    plan = planned(gathered, target)
    changed = bool(plan.added) and not dry_run
    if not as_json:
        _print_plan(plan, gathered, target)
    if changed:
        write_config(target, plan, files)
    if as_json:
        echo(json.dumps(_answer(plan, gathered, target, changed=changed), ensure_ascii=False))
    elif gathered.files:
        echo(_outcome(plan, target, changed=changed))


def chosen_clients(names: list[str] | None) -> list[Client]:
    """Return the clients with these names, or all. Exits if one is unknown."""
    from taskgate.config.clients.known import CLIENTS, UnknownClient, client_named

    try:
        return [client_named(name) for name in names] if names else list(CLIENTS.values())
    except UnknownClient as error:
        raise stop(str(error)) from None


def planned(gathered: Gathered, target: Path) -> ImportPlan:
    """Return the change to the file, or print why it is not possible and exit."""
    from taskgate.config.clients.found_servers import read_settings
    from taskgate.config.clients.import_plan import CannotImport, plan_import
    from taskgate.config.clients.settings_text import SettingsError

    try:
        return plan_import(gathered.found, read_settings(target), str(target))
    except (CannotImport, SettingsError) as error:
        raise stop(str(error)) from None


def write_config(target: Path, plan: ImportPlan, files: ProjectFiles) -> Path | None:
    """Write the file, readable by its owner only if it is new, allow it, and return the path of the backup, if any."""
    from taskgate.config.clients.change_records import backup_of, write_file

    backup = backup_of(target) if target.exists() else None
    if backup is not None:
        write_file(backup, plan.before, mode=0o600)
    is_covered = files.covers(target)
    write_file(target, plan.after)
    if is_covered:
        files.written(target)
    return backup


def stop(message: str, code: ExitCode = ExitCode.USAGE) -> Failed:
    """Return the exception that ends a command with this message."""
    return Failed(message, code)


def _answer(plan: ImportPlan, gathered: Gathered, target: Path, *, changed: bool) -> dict[str, object]:
    return {
        "file": str(target),
        "changed": changed,
        "added": [{"id": k, "client": item.client, "from": str(item.path)} for k, item in plan.added.items()],
        "passed_over": [{"name": item.name, "client": item.client, "reason": why} for item, why in plan.passed_over],
        "notes": gathered.notes,
        "read": [str(path) for path in gathered.files],
    }


def _print_plan(plan: ImportPlan, gathered: Gathered, target: Path) -> None:
    """Print the programs and addresses before they are written: what is written is allowed."""
    for note in gathered.notes:
        echo(f"note: {note}", err=True)
    if not gathered.files:
        echo("No client settings found on this machine.")
        return
    echo(plan.diff(str(target)), nl=False)
    for item, reason in plan.passed_over:
        echo(f'"{item.name}" of {item.client} skipped: {reason}')


def _outcome(plan: ImportPlan, target: Path, *, changed: bool) -> str:
    if changed:
        return f"Added {len(plan.added)} server(s) to {target}. Next: taskgate check -c {target}"
    if plan.added:
        return f"Nothing was changed. Without --dry-run, {len(plan.added)} server(s) are added to {target}."
    return "No new servers found."
