"""`taskgate doctor`: check this installation and print how to fix what is wrong. Nothing is changed."""

from __future__ import annotations

import asyncio
import json
import platform
import shlex
import sqlite3
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import asdict

from taskgate import __version__
from taskgate.cli import printing
from taskgate.cli.command_line import Commands, Exit, Option
from taskgate.cli.configuration import ConfigOption, skip_reason
from taskgate.cli.doctor_servers import server_findings
from taskgate.cli.exit_codes import ExitCode
from taskgate.cli.findings import Finding
from taskgate.cli.listen_errors import listen_problem
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from taskgate.config.load import LoadedConfig


OLDEST_PYTHON = (3, 11)
OLDEST_SQLITE = (3, 35)
CLOCKS_AGREE_S = 5.0
MARKS = {"ok": "ok  ", "note": "note", "bad": "BAD "}


def register(app: Commands) -> None:
    app.command("doctor")(doctor)


def doctor(
    config: ConfigOption = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON, one finding per line.")] = False,
    connect: Annotated[bool, Option(help="Also connect to every server.")] = True,
) -> None:
    """Check versions, configuration, variables, store, state folder, port and servers, and print how to fix problems."""
    from taskgate.telemetry import logs

    # Log lines would only interleave with the findings.
    logs.set_up("error")
    findings = list(_examine(config, connect))
    if as_json:
        for finding in findings:
            # `said` is the deprecated name of `detail`.
            print(json.dumps({**asdict(finding), "said": finding.detail}, ensure_ascii=False))
    else:
        for finding in findings:
            print(f"{MARKS[finding.verdict]} {finding.about}: {finding.detail}")
            if finding.fix:
                print(f"     -> {finding.fix}")
    if any(finding.verdict == "bad" for finding in findings):
        raise Exit(ExitCode.UNHEALTHY)


def _examine(config: str | None, connect: bool) -> Iterator[Finding]:
    from taskgate.config.load import find, load_or_default
    from taskgate.config.problems import ConfigError

    yield from _versions()
    try:
        loaded = load_or_default(config)
    except ConfigError as error:
        for problem in error.problems:
            yield Finding("bad", "configuration", str(problem), "Correct the file; `taskgate check` reads it again.")
        return
    log.hide(loaded.secret_values.text)
    path = find(config)
    detail = f"{path} is valid" if path is not None else "no file found; the bundled demo server is used"
    yield Finding("ok", "configuration", detail)
    for finding in _examine_loaded(loaded, connect):
        # Error messages of servers and stores may contain addresses and arguments.
        detail, fix = map(loaded.secret_values.text, (finding.detail, finding.fix))
        yield msgspec.structs.replace(finding, detail=detail, fix=fix)


def _examine_loaded(loaded: LoadedConfig, connect: bool) -> Iterator[Finding]:
    from taskgate.cli.local_gateways import running_gateways
    from taskgate.cli.start_conditions import state_folder_errors
    from taskgate.core.errors import TaskgateError

    yield from _warnings(loaded)
    if not any(server.enabled for server in loaded.root.servers.values()):
        yield Finding("bad", "servers", "no server is configured", "Add one under `servers`, or run: taskgate import")
    yield _store(loaded)
    yield from _damaged_rows(loaded)
    yield from _state_folder(loaded)
    yield from _other_gateways(loaded)
    running = running_gateways()
    yield from _gateways(running)
    yield _port(loaded, {record["url"] for record in running})
    if connect:
        try:
            with state_folder_errors(loaded):
                findings = asyncio.run(server_findings(loaded))
        except TaskgateError as problem:
            findings = [Finding("bad", "servers", f"not examined: {problem.message}")]
        yield from findings


def _versions() -> Iterator[Finding]:
    python = platform.python_version()
    old = sys.version_info < OLDEST_PYTHON
    yield Finding(
        "bad" if old else "ok", "taskgate", f"{__version__} on Python {python}", "Use Python 3.11." if old else ""
    )
    old = sqlite3.sqlite_version_info[:2] < OLDEST_SQLITE
    fix = "Use a Python built with SQLite 3.35 or newer." if old else ""
    yield Finding("bad" if old else "ok", "sqlite", sqlite3.sqlite_version, fix)


def _warnings(loaded: LoadedConfig) -> Iterator[Finding]:
    for warning in loaded.warnings:
        yield Finding("note", "configuration", str(warning))
    for skipped in loaded.skipped:
        fix = (
            f"Set {skipped.detail}, or give a default, for example ${{{skipped.detail.split(',')[0]}:-default}}."
            if skipped.reason == "env_missing"
            else ""
        )
        fix = "Store the secret at the place that the reference names." if skipped.reason == "secret_missing" else fix
        verdict = "bad" if skipped.reason == "env_missing" else "note"
        yield Finding(verdict, f"server {skipped.server}", f"skipped: {skip_reason(skipped)}", fix)


def _store(loaded: LoadedConfig) -> Finding:
    from taskgate.assembly.shared_store import check_shared, shared_url
    from taskgate.assembly.stores import check_store, store_path
    from taskgate.core.errors import TaskgateError

    try:
        if (url := shared_url(loaded)) is not None:
            return Finding("ok", "store", check_shared(url))
        path = store_path(loaded)
        check_store(path)
    except TaskgateError as problem:
        return Finding("bad", "store", problem.message, "Set TASKGATE_STATE_DIR or store.url.")
    return Finding("ok", "store", f"{path}" + ("" if path.exists() else " (will be created)"))


def _damaged_rows(loaded: LoadedConfig) -> Iterator[Finding]:
    """Rows that the gateway leaves out."""
    import sqlite3
    from itertools import islice

    from taskgate import clock
    from taskgate.assembly.damaged_rows import MAX_LISTED, damaged_in_database, damaged_in_file
    from taskgate.assembly.shared_store import shared_url
    from taskgate.assembly.stores import store_path
    from taskgate.core.errors import TaskgateError

    fix = "Restore the row from a backup, or delete it with the gateway stopped. The gateway leaves it out until then."
    try:
        url = shared_url(loaded)
        rows = (
            damaged_in_file(store_path(loaded), clock.wall_ms())
            if url is None
            else damaged_in_database(url, clock.wall_ms())
        )
        for row in islice(rows, MAX_LISTED):
            yield Finding("bad", f"store row {row.table} {printing.clean(row.key)}", printing.clean(row.why), fix)
    except (TaskgateError, sqlite3.Error, OSError):
        return  # reported by the store check


def _state_folder(loaded: LoadedConfig) -> Iterator[Finding]:
    """Check the permissions: the folder contains the operator's token, keys and data of callers."""
    folder = loaded.state_dir
    if not folder.is_dir():
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        detail = f"{folder} is accessible to other users of this machine (mode {mode:o})"
        yield Finding("bad", "state folder", detail, f"Run: chmod 700 {shlex.quote(str(folder))}")
    else:
        yield Finding("ok", "state folder", f"{folder} is readable by its owner only")


def _other_gateways(loaded: LoadedConfig) -> Iterator[Finding]:
    """Compare the gateways that share the database: version, configuration and clock."""
    from taskgate import clock
    from taskgate.assembly.shared_store import configuration_digest, gateways_on, shared_url
    from taskgate.core.errors import TaskgateError

    url = shared_url(loaded)
    if url is None:
        return
    try:
        now, alive = gateways_on(url)
    except TaskgateError:
        return  # reported by the store check
    ours = configuration_digest(loaded)
    for replica in alive:
        what = f"{replica.address}, Taskgate {replica.version}, configuration {replica.configuration}"
        other = [
            word
            for word, here, there in (
                ("configuration", ours, replica.configuration),
                ("version", __version__, replica.version),
            )
            if here != there
        ]
        fix = (
            f"Its {' and '.join(other)} differ{'s' if len(other) == 1 else ''} from this one; use the same everywhere."
            if other
            else ""
        )
        yield Finding("note" if other else "ok", "gateway", what, fix)
    off_s = abs(clock.wall_ms() - now) / 1000
    if off_s > CLOCKS_AGREE_S:
        text = f"the clocks of this machine and the database differ by {off_s:.0f} s; leases and deadlines use the database's"
        yield Finding("note", "clock", text, "Synchronize both clocks (NTP); log lines use this machine's clock.")


def _gateways(running: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    for record in running:
        started = "started by a client" if record["kind"] == "on-demand" else "started with `taskgate serve`"
        detail = f"{record['url']} is running ({started}, process {record['pid']}) for {record['config'] or 'the demo'}"
        missing = _missing(record["url"])
        if missing:
            fix = "Until then it rejects calls that need what is missing. Its log has the cause."
            yield Finding("bad", "gateway", f"{detail}, but it is not ready: {missing}", fix)
        else:
            yield Finding("ok", "gateway", detail)


def _missing(url: str) -> str:
    """What a running gateway lacks according to its readiness; empty if it is ready or does not answer."""
    from taskgate.cli.gateway_api import readiness

    found = readiness(url)
    if found.get("ready") is not False:
        return ""
    store = f"the store: {found['store']}" if found.get("store") else ""
    return printing.clean(store or f"{', '.join(map(str, found.get('degraded') or ()))} unavailable")


def _port(loaded: LoadedConfig, ours: Collection[str]) -> Finding:
    """Check whether the port is free, or used by a gateway of this state folder."""
    host, port = loaded.root.listen.host, loaded.root.listen.port
    if any(urlsplit(url).port == port for url in ours):
        return Finding("ok", "port", f"{port} is used by the running gateway")
    why = listen_problem(host, port)
    if why is not None:
        return Finding("note", "port", why)
    return Finding("ok", "port", f"{host}:{port} is free")
