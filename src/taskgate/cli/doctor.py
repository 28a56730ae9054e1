"""`taskgate doctor`: what is wrong with this installation, and what to do about it. It changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shlex
import sqlite3
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from taskgate import __version__
from taskgate.cli.say import ExitCode
from taskgate.cli.serve import ConfigOption, why_left_out, why_not_free
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from taskgate.config.load import LoadedConfig
    from taskgate.gateway.catalog.catalogs import Catalogs
    from taskgate.upstreams.server import Server

OLDEST_PYTHON = (3, 11)
OLDEST_SQLITE = (3, 35)
CLOCKS_AGREE_S = 5.0
CONNECT_S = 15.0
LAST_WORDS = 3
PRINTS = (
    "Only messages belong on stdout: anything else breaks stricter clients. Make the program log to stderr; if it starts through "
    "a script or a package runner, make that one quiet."
)
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")
MARKS = {"ok": "ok  ", "note": "note", "bad": "BAD "}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `fix` says what to do when it is not in order."""

    verdict: str
    about: str
    said: str
    fix: str = ""


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for scripts: one finding a line.")] = False,
    connect: Annotated[bool, typer.Option(help="Also try to reach every server.")] = True,
) -> None:
    """Check versions, configuration, variables, store, state folder, port and servers, and print how to fix what is wrong."""
    from taskgate.telemetry import logs

    # The findings say everything; log lines of what is tried would only stand between them.
    logs.set_up("error")
    findings = list(_examine(config, connect))
    if as_json:
        for finding in findings:
            print(json.dumps(asdict(finding), ensure_ascii=False))
    else:
        for finding in findings:
            print(f"{MARKS[finding.verdict]} {finding.about}: {finding.said}")
            if finding.fix:
                print(f"     -> {finding.fix}")
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(ExitCode.UNHEALTHY)


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
    said = f"{path} is in order" if path is not None else "no file found; the bundled demo server is used"
    yield Finding("ok", "configuration", said)
    for finding in _examine_loaded(loaded, connect):
        # Servers and stores repeat addresses and arguments in their complaints.
        said, fix = map(loaded.secret_values.text, (finding.said, finding.fix))
        yield replace(finding, said=said, fix=fix)


def _examine_loaded(loaded: LoadedConfig, connect: bool) -> Iterator[Finding]:
    from taskgate.cli.gateways import running_gateways

    yield from _warnings(loaded)
    if not any(server.enabled for server in loaded.root.servers.values()):
        yield Finding("bad", "servers", "no server is configured", "Add one under `servers`, or run: taskgate import")
    yield _store(loaded)
    yield from _state_folder(loaded)
    yield from _other_gateways(loaded)
    running = running_gateways()
    yield from _gateways(running)
    yield _port(loaded, {record["url"] for record in running})
    if connect:
        yield from asyncio.run(_servers(loaded))


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
    for gone in loaded.left_out:
        fix = f"Set {gone.detail}, or write a default: ${{NAME:-default}}." if gone.reason == "env_missing" else ""
        fix = "Put the secret where the reference looks for it." if gone.reason == "secret_missing" else fix
        verdict = "bad" if gone.reason == "env_missing" else "note"
        yield Finding(verdict, f"server {gone.server}", f"skipped: {why_left_out(gone)}", fix)


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
    return Finding("ok", "store", f"{path}" + ("" if path.exists() else " (will be made)"))


def _state_folder(loaded: LoadedConfig) -> Iterator[Finding]:
    """It holds the operator's token, keys and what callers sent: no other user of this machine may read it."""
    folder = loaded.state_dir
    if not folder.is_dir():
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        said = f"{folder} is open to other users of this machine (mode {mode:o})"
        yield Finding("bad", "state folder", said, f"Run: chmod 700 {shlex.quote(str(folder))}")
    else:
        yield Finding("ok", "state folder", f"{folder} is readable by its owner only")


def _other_gateways(loaded: LoadedConfig) -> Iterator[Finding]:
    """The gateways that share the database: whether they are like this one, and whether the clocks agree."""
    from taskgate import clock
    from taskgate.assembly.shared_store import configuration_digest, gateways_on, shared_url
    from taskgate.core.errors import TaskgateError

    url = shared_url(loaded)
    if url is None:
        return
    try:
        now, living = gateways_on(url)
    except TaskgateError:
        return  # said by the store's own line
    ours = configuration_digest(loaded)
    for replica in living:
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
            f"It has another {' and another '.join(other)} than this one: give all gateways the same." if other else ""
        )
        yield Finding("note" if other else "ok", "gateway", what, fix)
    off_s = abs(clock.wall_ms() - now) / 1000
    if off_s > CLOCKS_AGREE_S:
        text = f"this machine and the database are {off_s:.0f} s apart; leases and deadlines go by the database"
        yield Finding("note", "clock", text, "Let both keep time (NTP): times in log lines are this machine's.")


def _gateways(running: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    for record in running:
        started = "started by a client" if record["kind"] == "on-demand" else "started with `taskgate serve`"
        said = f"{record['url']} is running ({started}, process {record['pid']}) for {record['config'] or 'the demo'}"
        yield Finding("ok", "gateway", said)


def _port(loaded: LoadedConfig, ours: Collection[str]) -> Finding:
    """Whether a gateway could listen there; one of this state folder that does so already is in nobody's way."""
    host, port = loaded.root.listen.host, loaded.root.listen.port
    if any(urlsplit(url).port == port for url in ours):
        return Finding("ok", "port", f"{port} is the running gateway's")
    why = why_not_free(host, port)
    if why is not None:
        return Finding("note", "port", f"{host}:{port}: {why}", "Something else listens there: stop it, or use --port.")
    return Finding("ok", "port", f"{host}:{port} is free")


async def _servers(loaded: LoadedConfig) -> list[Finding]:
    """Each server is really connected to, as `serve` would, and let go again."""
    from taskgate.assembly.build import Unheard, intake_within, server_specs
    from taskgate.assembly.governing import Outbound
    from taskgate.assembly.identity import accounts_of
    from taskgate.assembly.plan import build_limits
    from taskgate.gateway.catalog.catalogs import listed_only
    from taskgate.mcp.http.client import HttpClient
    from taskgate.mcp.stdio.reaper import Reaper
    from taskgate.upstreams.server import Server

    limits = build_limits(loaded.root)
    limits = replace(limits, tools_fetch_timeout_s=min(limits.tools_fetch_timeout_s, CONNECT_S))
    http = HttpClient(max_response_bytes=limits.result_bytes, max_event_bytes=limits.result_bytes)
    reaper, listener, intake = Reaper(), Unheard(), intake_within(limits)
    outbound = Outbound()
    specs = server_specs(loaded, accounts_of(loaded, outbound))
    servers = [Server(spec, listener, http, reaper, intake) for spec in specs.values()]
    try:
        found = list(await asyncio.gather(*(_reach(server) for server in servers)))
        reached = {server.id: server for server, finding in zip(servers, found, strict=True) if finding.verdict == "ok"}
        catalogs = listed_only(reached, limits)
        await catalogs.ready(reached)
        found = [_listed(catalogs, finding) for finding in found]
        if loaded.root.validate_arguments != "off":
            found += _schemas(catalogs, reached, enforced=loaded.root.validate_arguments == "enforce")
        await catalogs.close()
        return found
    finally:
        await asyncio.gather(*(server.close() for server in servers), return_exceptions=True)
        await http.close()
        await outbound.close()
        await reaper.close()


def _listed(catalogs: Catalogs, finding: Finding) -> Finding:
    """What a server that was reached offers, or which of its lists could not be had."""
    from taskgate.gateway.catalog.offer import LISTS

    server = finding.about.removeprefix("server ")
    said = catalogs.report(server)
    if finding.verdict != "ok":
        return finding
    counts = ", ".join(f"{said[how.key]} {how.key}" for how in LISTS.values() if how.key in said)
    text = f"{finding.said}; {counts or 'no lists'}"
    if "problem" not in said:
        return replace(finding, said=text)
    fix = "Callers see the rest; look into the server's own log for the list that failed."
    if said["listed"]:
        return Finding("note", finding.about, f"{text}. {said['problem']}", fix)
    return Finding(
        "bad", finding.about, f"{finding.said}, but {said['problem']}", "Its tools cannot be seen or called."
    )


def _schemas(catalogs: Catalogs, servers: Iterable[str], *, enforced: bool) -> list[Finding]:
    """Tools whose schemas cannot be used: what they take cannot be called where that is enforced, what they give is not checked."""
    from taskgate.core.catalog.entry import EntryKind
    from taskgate.gateway.catalog.validate import unusable_schemas

    offers = {server: catalogs.offer(server) for server in servers}
    entries = [e for offer in offers.values() if offer is not None for e in offer.entries.get(EntryKind.TOOL, ())]
    found = []
    for entry in entries:
        for side, why in unusable_schemas(entry):
            if side == "output":
                said, fix = f"its output is not validated. {why}", ""
            else:
                said = f"its arguments cannot be validated{', so it cannot be called' if enforced else ''}. {why}"
                fix = "Have the server corrected, or use validate: warn." if enforced else ""
            found.append(Finding("note", f"tool {entry.name} of {entry.server}", said, fix))
    return found


async def _how_to_log_in(url: str) -> str:
    """What a server that wants to know who calls says about where to get a token."""
    from taskgate.client.errors import ClientError
    from taskgate.client.oauth.discovery import Challenge, Fetcher, discover_authority

    put = 'put a token in its headers: Authorization: "Bearer ${TOKEN}"'
    try:
        async with asyncio.timeout(CONNECT_S):
            authority = await discover_authority(Fetcher(), url, Challenge())
    except (ClientError, OSError, TimeoutError):
        return f"It wants a token and does not say where to get one; {put}."
    scopes = " ".join(authority.resource_scopes or authority.own_scopes)
    wanted = f" (scopes: {scopes})" if scopes else ""
    login = "write `auth: {type: authorization_code}` for it and run `taskgate servers login NAME`"
    return f"It wants OAuth of {authority.issuer}{wanted}: {login}, or {put}."


def _is_refused_a_stranger(problem: BaseException | None) -> bool:
    """Whether the server wants to know who calls. A handshake that fails hides what was said to it in its cause."""
    from taskgate.ports.upstream import CallFailed

    while problem is not None:
        if isinstance(problem, CallFailed) and problem.evidence.status == 401:
            return True
        problem = problem.__cause__ or problem.__context__
    return False


async def _reach(server: Server) -> Finding:
    from taskgate.core.errors import TaskgateError

    about = f"server {server.id}"
    try:
        async with asyncio.timeout(CONNECT_S):
            link = await server.listening_link()
    except TimeoutError:
        return Finding("bad", about, f"no answer within {CONNECT_S:g} s", "Is it running, and is its address right?")
    except TaskgateError as problem:
        if _is_refused_a_stranger(problem):
            return Finding("bad", about, problem.message, await _how_to_log_in(server.spec.url))
        return _not_started(server, problem.message)
    if (printed := server.status().printed) != "":
        said = f"connected over {server.transport}, but it prints to stdout: {printed!r}"
        return Finding("note", about, said, PRINTS)
    return Finding("ok", about, f"connected over {server.transport}, {link.generation.value} generation")


def _not_started(server: Server, message: str) -> Finding:
    """A server that could not be reached: what its program wrote tells most about why."""
    status = server.status()
    words = status.stderr[-LAST_WORDS:]
    said = f"{message} stderr: {' | '.join(words)}" if words else message
    fix = "Start it by hand to see its output, or check its address."
    if (missing := _missing_variable(server, status.stderr)) is not None:
        fix = _how_to_set(missing, server.id)
    elif status.printed:
        said, fix = f"{said} stdout: {status.printed!r}", PRINTS
    return Finding("bad", f"server {server.id}", said, fix)


def _missing_variable(server: Server, stderr: Iterable[str]) -> str | None:
    """A variable that the program names in its complaint and was not given."""
    from taskgate.mcp.stdio.process import ChildSpec, child_environment

    if not server.spec.command:
        return None
    given = child_environment(ChildSpec(server.spec.command, env=server.spec.env, inherits=server.spec.inherits))
    named = (word for line in stderr for word in _VARIABLE.findall(line))
    return next((word for word in named if word not in given), None)


def _how_to_set(variable: str, server: str) -> str:
    setting = f'servers.{server}.env: {{{variable}: "${{{variable}}}"}}'
    if variable in os.environ:
        return f"{variable} is set here, but servers get only what the configuration gives them. Write {setting}."
    return f"It seems to need {variable}, which is not set. Set it, and write {setting}."
