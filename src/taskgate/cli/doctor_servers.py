"""The server checks of `taskgate doctor`: connect to each server, list its tools, and explain failures."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import structs

from taskgate.cli import printing
from taskgate.cli.findings import Finding

if TYPE_CHECKING:
    from taskgate.config.load import LoadedConfig
    from taskgate.gateway.catalog.catalogs import Catalogs
    from taskgate.upstreams.server import Server


CONNECT_S = 15.0
STDERR_LINES = 3
PRINTS = (
    "A stdio server must print only MCP messages to stdout. Make the program log to stderr; if a script or a package runner "
    "starts it, silence that one."
)
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")


async def server_findings(loaded: LoadedConfig) -> list[Finding]:
    """Connect to each server as `serve` does, list its tools, and disconnect."""
    from taskgate.assembly.channels import Outbound
    from taskgate.assembly.server_accounts import accounts_of
    from taskgate.assembly.server_specs import NullListener, intake_within, server_specs
    from taskgate.gateway.catalog.catalogs import listed_only
    from taskgate.mcp.http.client import HttpClient
    from taskgate.mcp.stdio.reaper import Reaper
    from taskgate.upstreams.server import Server

    limits = loaded.root.limits
    limits = structs.replace(limits, tools_fetch_timeout_ms=min(limits.tools_fetch_timeout_ms, round(CONNECT_S * 1000)))
    http = HttpClient(max_response_bytes=limits.result_bytes, max_event_bytes=limits.result_bytes)
    reaper, listener, intake = Reaper(), NullListener(), intake_within(limits)
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
        found += _unmatched(loaded, catalogs)
        await catalogs.close()
        return found
    finally:
        await asyncio.gather(*(server.close() for server in servers), return_exceptions=True)
        await http.close()
        await outbound.close()
        await reaper.close()


def _listed(catalogs: Catalogs, finding: Finding) -> Finding:
    """Add the numbers of tools, prompts and resources of a connected server, or which list failed."""
    from taskgate.gateway.catalog.offer import LISTS

    server = finding.about.removeprefix("server ")
    report = catalogs.report(server)
    if finding.verdict != "ok":
        return finding
    counts = ", ".join(f"{report[how.key]} {how.key}" for how in LISTS.values() if how.key in report)
    text = f"{finding.detail}; {counts or 'no lists'}"
    if "problem" not in report:
        return structs.replace(finding, detail=text)
    fix = "The other lists are available. See the server's own log for the list that failed."
    if report["listed"]:
        return Finding("note", finding.about, f"{text}. {report['problem']}", fix)
    return Finding(
        "bad",
        finding.about,
        f"{finding.detail}, but {report['problem']}",
        "Its tools cannot be called. See the server's own log.",
    )


def _unmatched(loaded: LoadedConfig, catalogs: Catalogs) -> list[Finding]:
    """Report patterns that match nothing: a rule that denies such a pattern denies nothing."""
    from taskgate.core.governance.pattern_mistakes import write_instead
    from taskgate.core.governance.unmatched_patterns import NameIndex, patterns_in
    from taskgate.gateway.governance.unmatched_report import SUGGESTIONS, names_by_kind, schemas_in

    offers = catalogs.offers()
    missing = [each.server for each in loaded.skipped if each.reason != "disabled"]
    servers = [*missing, *(name for name, server in loaded.root.servers.items() if server.enabled)]
    index = NameIndex(
        {name: names_by_kind(offers[name]) if name in offers else {} for name in servers}, schemas_in(offers)
    )
    found: list[Finding] = []
    for use in patterns_in(loaded.root):
        unmatched = index.unmatched(use, suggest=len(found) < SUGGESTIONS)
        if unmatched is not None:
            correction = printing.clean(write_instead(unmatched.instead))
            detail = printing.clean(f"`{unmatched.pattern}` {unmatched.message}")
            found.append(
                Finding("note", unmatched.place, detail, f"To correct it, {correction}." if correction else "")
            )
    return found


def _schemas(catalogs: Catalogs, servers: Iterable[str], *, enforced: bool) -> list[Finding]:
    """Report tools with invalid schemas: with `validate: enforce` they cannot be called, and their output is not validated."""
    from taskgate.core.catalog.entry import EntryKind
    from taskgate.gateway.catalog.validate import unusable_schemas

    offers = {server: catalogs.offer(server) for server in servers}
    entries = [e for offer in offers.values() if offer is not None for e in offer.entries.get(EntryKind.TOOL, ())]
    found = []
    for entry in entries:
        for side, why in unusable_schemas(entry):
            if side == "output":
                detail, fix = f"its output is not validated. {why}", ""
            else:
                detail = f"its arguments cannot be validated{', so it cannot be called' if enforced else ''}. {why}"
                fix = "Correct the schema in the server, or use validate: warn." if enforced else ""
            found.append(Finding("note", f"tool {entry.name} of {entry.server}", detail, fix))
    return found


async def _how_to_log_in(url: str) -> str:
    """Return how to authenticate to a server that returned 401."""
    from taskgate.client.errors import ClientError
    from taskgate.client.oauth.discovery import discover_authority
    from taskgate.client.oauth.fetcher import Fetcher
    from taskgate.mcp.oauth_challenge import Challenge

    put = 'put a token in its headers: Authorization: "Bearer ${TOKEN}"'
    try:
        async with asyncio.timeout(CONNECT_S):
            authority = await discover_authority(Fetcher(), url, Challenge())
    except (ClientError, OSError, TimeoutError):
        return f"The server requires a token and publishes no OAuth metadata; {put}."
    scopes = " ".join(authority.resource_scopes or authority.own_scopes)
    scope_note = f" (scopes: {scopes})" if scopes else ""
    login = "write `auth: {type: authorization_code}` for it and run `taskgate servers login NAME`"
    return f"The server requires OAuth tokens of {authority.issuer}{scope_note}: {login}, or {put}."


def _refuses_without_login(problem: BaseException | None) -> bool:
    """Whether the server returned 401. A failed handshake has the HTTP error as its cause."""
    from taskgate.ports.call_failure import CallFailed

    while problem is not None:
        if isinstance(problem, CallFailed) and problem.evidence.status == 401:
            return True
        problem = problem.__cause__ or problem.__context__
    return False


async def _reach(server: Server) -> Finding:
    from taskgate.core.errors import TaskgateError
    from taskgate.ports.call_failure import for_operators

    about = f"server {server.id}"
    try:
        async with asyncio.timeout(CONNECT_S):
            link = await server.listening_link()
    except TimeoutError:
        return Finding(
            "bad",
            about,
            f"no response within {CONNECT_S:g} s",
            "Check that it is running and that its address is correct.",
        )
    except TaskgateError as problem:
        if _refuses_without_login(problem):
            return Finding("bad", about, for_operators(problem), await _how_to_log_in(server.spec.url))
        return _not_started(server, for_operators(problem))
    if (printed := server.status().printed) != "":
        detail = f"connected over {server.transport}, but it prints to stdout: {printed!r}"
        return Finding("note", about, detail, PRINTS)
    return Finding("ok", about, f"connected over {server.transport}, {link.generation.value} generation")


def _not_started(server: Server, message: str) -> Finding:
    """Report a server that could not be started or reached, with the last lines of its stderr."""
    status = server.status()
    words = status.stderr[-STDERR_LINES:]
    detail = f"{message} stderr: {' | '.join(words)}" if words else message
    fix = "Check its address." if server.spec.url else "Run its command in a shell to see its output."
    if (missing := _missing_variable(server, status.stderr)) is not None:
        fix = _how_to_set(missing, server.id)
    elif status.printed:
        detail, fix = f"{detail} stdout: {status.printed!r}", PRINTS
    return Finding("bad", f"server {server.id}", detail, fix)


def _missing_variable(server: Server, stderr: Iterable[str]) -> str | None:
    """Return an environment variable that the program's stderr mentions and that is not passed to it."""
    from taskgate.mcp.stdio.process import ChildSpec, child_environment

    if not server.spec.command:
        return None
    given = child_environment(ChildSpec(server.spec.command, env=server.spec.env, inherits=server.spec.inherits))
    named = (word for line in stderr for word in _VARIABLE.findall(line))
    return next((word for word in named if word not in given), None)


def _how_to_set(variable: str, server: str) -> str:
    setting = f'servers.{server}.env: {{{variable}: "${{{variable}}}"}}'
    if variable in os.environ:
        return f"{variable} is set, but not passed to the server. Write {setting}."
    return f"The server seems to need {variable}, which is not set. Set it, and write {setting}."
