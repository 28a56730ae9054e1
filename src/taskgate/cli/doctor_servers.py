"""The server checks of `taskgate doctor`: connect to each server, list its tools, and explain failures."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from taskgate.cli.findings import Finding

if TYPE_CHECKING:
    from taskgate.config.load import LoadedConfig
    from taskgate.gateway.catalog.catalogs import Catalogs
    from taskgate.upstreams.server import Server


CONNECT_S = 15.0
LAST_WORDS = 3
PRINTS = (
    "Only messages belong on stdout: anything else breaks stricter clients. Make the program log to stderr; if it starts through "
    "a script or a package runner, make that one quiet."
)
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")


async def server_findings(loaded: LoadedConfig) -> list[Finding]:
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
    from taskgate.client.oauth.challenge import Challenge
    from taskgate.client.oauth.discovery import discover_authority
    from taskgate.client.oauth.fetcher import Fetcher

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
