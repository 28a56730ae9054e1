"""`taskgate allow`: consent to what a configuration file in a working folder starts, contacts and reads."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from taskgate import clock
from taskgate.cli import printing
from taskgate.cli.command_line import Argument, Commands, Failed, Option, confirm
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.target import Json
from taskgate.consent import Allowed, place_of
from taskgate.folders import FOUND_NAME, state_folder

if TYPE_CHECKING:
    from taskgate.config.leaving import Leaving


FilePath = Annotated[Path | None, Argument(metavar="[FILE]", help="File to allow. Default: ./taskgate.yaml.")]
Listed = Annotated[bool, Option("--list", help="List the allowed files.")]
Revoke = Annotated[bool, Option("--revoke", help="Withdraw the consent for the file.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask on a terminal.")]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    app.command("allow")(allow)


def allow(
    file: FilePath = None, listed: Listed = False, revoke: Revoke = False, yes: Yes = False, as_json: Json = False
) -> None:
    """Allow a taskgate.yaml in a project folder for clients that start `taskgate stdio` there.

    Shows the programs, addresses, files and references of the file. Later edits of them need consent again, other edits do not.
    """
    allowed = Allowed(state_folder(os.environ))
    path = file or Path(FOUND_NAME)
    try:
        if listed:
            _list(allowed, as_json)
        elif revoke:
            _revoke(allowed, path, as_json)
        else:
            _allow(allowed, path, asks=not yes and not as_json and sys.stdin.isatty(), as_json=as_json)
    except OSError as problem:
        raise Failed(f"The records of allowed files cannot be used: {problem}", ExitCode.FAILED) from None


def items_of(path: Path) -> list[Leaving]:
    """Return what leaves a configuration file, or a client's settings of a project. Exits with its problems."""
    from taskgate.config.clients.known import CLIENTS
    from taskgate.config.clients.project_settings import leaving_of_settings
    from taskgate.config.load import leaving_of_file
    from taskgate.config.problems import ConfigError

    try:
        items = leaving_of_settings(path, CLIENTS.values())
        return leaving_of_file(path) if items is None else items
    except ConfigError as error:
        raise Failed(str(error), ExitCode.USAGE) from None


def show(items: list[Leaving], known: frozenset[str]) -> None:
    """Print what leaves a file; what is not allowed yet is marked."""
    for item in items:
        print(f"{' ' if item.digest in known else '+'} {line_of(item)}")


def line_of(item: Leaving) -> str:
    """Return what leaves a file in one line, with blank and misleading characters escaped."""
    from taskgate.core.governance.card import show_name

    return show_name(item.text)


def _allow(allowed: Allowed, path: Path, *, asks: bool, as_json: bool) -> None:
    items = items_of(path)
    known = allowed.digests(str(path)) or frozenset()
    if not as_json:
        show(items, known)
    if asks and not confirm(f"Allow this for clients that start in {path.absolute().parent}?", default=False):
        raise Failed("Nothing was allowed.", ExitCode.REFUSED)
    allowed.allow(str(path), frozenset(item.digest for item in items), clock.wall())
    if as_json:
        rows = [{"where": item.where, "value": item.value, "new": item.digest not in known} for item in items]
        print(json.dumps({"file": place_of(str(path)), "allowed": rows}, ensure_ascii=False))
    else:
        print(printing.clean(f"Allowed {place_of(str(path))}. To withdraw: taskgate allow --revoke {path}"))


def _revoke(allowed: Allowed, path: Path, as_json: bool) -> None:
    if not allowed.revoke(str(path)):
        raise Failed(f"{place_of(str(path))} is not allowed, so nothing was changed.", ExitCode.NOT_FOUND)
    running = _running(place_of(str(path)))
    if as_json:
        print(json.dumps({"file": place_of(str(path)), "revoked": True, "running": running}, ensure_ascii=False))
        return
    print(printing.clean(f"Clients no longer use {place_of(str(path))}."))
    for address in running:
        print(f"The gateway at {address} was started with it and runs on. To stop it: taskgate stop")


def _running(place: str) -> list[str]:
    from taskgate.cli.local_gateways import running_gateways

    return [record["url"] for record in running_gateways() if record["config"] and place_of(record["config"]) == place]


def _list(allowed: Allowed, as_json: bool) -> None:
    rows = sorted(allowed.files().items())
    for path, record in rows:
        at = datetime.fromtimestamp(record.get("at", 0), UTC).isoformat(timespec="seconds")
        if as_json:
            fields = {"file": path, "allowed_at": at, "items": len(record["digests"]), "exists": os.path.exists(path)}
            print(json.dumps(fields, ensure_ascii=False))
        else:
            missing = "" if os.path.exists(path) else ", no longer exists"
            print(printing.clean(f"{path}  ({len(record['digests'])} items, {printing.local_time(at)}{missing})"))
    if not rows and not as_json:
        printing.note("No file is allowed.")
