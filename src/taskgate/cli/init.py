"""`taskgate init` and `taskgate schema`: create a configuration file, and print its JSON schema."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from taskgate.atomic_files import create_file
from taskgate.cli.command_line import Commands, Option, confirm, echo
from taskgate.cli.import_servers import chosen_clients, stop, write_config
from taskgate.cli.install import install
from taskgate.cli.project_files import ProjectFiles
from taskgate.cli.target import Json

if TYPE_CHECKING:
    from taskgate.config.clients.found_servers import Gathered
    from taskgate.config.clients.import_plan import ImportPlan


_HEAD = """\
{comment}
# Created by `taskgate init`. All keys: docs/configuration.md. Validate changes with: taskgate check
schema: 1
"""
# The interpreter is named by its path: with pipx or uv, and for clients that start the gateway, `python` is another one.
_DEMO = """\
servers:
  # The demo server is a part of Taskgate, so it needs the Python that Taskgate is installed in.
  files: {{command: {python}, args: ["-P", "-m", "taskgate.demo.files"]}}
"""
_CHANGING = ("*delete*", "*remove*", "*drop*", "*write*", "*send*")
_ASK_FIRST = f"""\
governance:
  rules:
{"".join(f'    - {{match: "{pattern}", action: approve, approval: people}}' + chr(10) for pattern in _CHANGING)}approval:
  people: {{channels: [inbox], timeout: 10m}}
"""
FilePath = Annotated[Path, Option("--config", "-c", help="File to create.")]
Yes = Annotated[
    bool,
    Option("--yes", "-y", help="Ask no questions: add all servers, no approval rules, and do not change clients."),
]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    app.command("init")(init)
    app.command("schema")(schema)


def init(config: FilePath = Path("taskgate.yaml"), yes: Yes = False, as_json: Json = False) -> None:
    """Create a taskgate.yaml from the MCP clients on this machine. Asks three questions."""
    if config.exists():
        raise stop(f"{config} already exists. Add servers with: taskgate import. Validate it with: taskgate check")
    asks = not yes and not as_json and sys.stdin.isatty()
    files = ProjectFiles(yes=yes, asks=asks)
    gathered = _found(files)
    if gathered.found and asks and not confirm(_first_question(gathered), default=True):
        gathered.found.clear()
    text = _starting_text(
        ask_first=asks and confirm("2. Require approval for tools that delete, write or send?", default=True),
        demo=not gathered.found,
    )
    plan = _plan(gathered, text, config)
    write_config(config, plan, files)
    _write_schema(config.parent)
    clients = sorted({item.client for item in plan.added.values()})
    chosen = clients if clients and asks and confirm(_third_question(clients), default=False) else []
    if as_json:
        echo(json.dumps({"file": str(config), "servers": sorted(_servers(plan)), "clients": clients}))
        return
    echo(f"Created {config} with {', '.join(sorted(_servers(plan)))}.")
    for name in chosen:
        install(client=name, config=config)
    echo(f"Next: taskgate check -c {config}, then taskgate serve -c {config}")


def schema() -> None:
    """Print the JSON schema of a configuration file, for editors."""
    echo(_schema_text(), nl=False)


def _schema_text() -> str:
    from taskgate.config.json_schema import configuration_schema

    return json.dumps(configuration_schema(), indent=2) + "\n"


def _write_schema(folder: Path) -> None:
    """Write the schema that the first line of the file refers to, unless it exists."""
    from taskgate.config.json_schema import SCHEMA_FILE

    with suppress(FileExistsError):
        create_file(folder / SCHEMA_FILE, _schema_text().encode(), 0o644)


def _found(files: ProjectFiles) -> Gathered:
    from taskgate.config.clients.client import Host
    from taskgate.config.clients.found_servers import gather

    clients, host = chosen_clients(None), Host.here()
    gathered = files.settings(gather(clients, host), clients, host)
    for note in gathered.notes:
        echo(f"note: {note}", err=True)
    return gathered


def _first_question(gathered: Gathered) -> str:
    names = ", ".join(f"{item.name} ({item.client})" for item in gathered.found)
    return f"1. Servers found: {names}. Add them to the file?"


def _third_question(clients: list[str]) -> str:
    return f"3. Connect {', '.join(clients)} to Taskgate now? (undo with `taskgate install NAME --undo`)"


def _starting_text(*, ask_first: bool, demo: bool) -> str:
    from taskgate.config.json_schema import EDITOR_COMMENT

    demo_server = _DEMO.format(python=json.dumps(sys.executable, ensure_ascii=False)) if demo else ""
    return _HEAD.format(comment=EDITOR_COMMENT) + (_ASK_FIRST if ask_first else "") + demo_server


def _plan(gathered: Gathered, text: str, config: Path) -> ImportPlan:
    from taskgate.config.clients.import_plan import CannotImport, ImportPlan, plan_import

    if not gathered.found:
        return ImportPlan("", text, text, {})
    try:
        return plan_import(gathered.found, text, str(config))
    except CannotImport as error:
        raise stop(str(error)) from None


def _servers(plan: ImportPlan) -> list[str]:
    return list(plan.added) or ["the demo server"]
