"""The servers and tools of a session: platform, then scope, then session, each of which can only restrict.

`compose` determines, once per session and again after each reload, which servers a session sees and why others are
excluded. The returned `Subset` answers for single tools. Listing and dispatch use the same function, so a tool cannot
be listed but refused, or hidden but callable. Whether a call may *run* is decided in `governance`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from taskgate.core.errors import CallerError
from taskgate.core.globs import AnyOf
from taskgate.core.patterns import ALL_TOOLS, NO_PATTERNS, PatternKind, PatternSet
from taskgate.core.scoping.registry import Registry, RegistryRecord
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.scoping.session_request import SessionRequest

# A caller may guess names without limit; beyond this number results are not cached.
MAX_REMEMBERED = 5_000  # of one server

_EVERYTHING, _NOTHING = ALL_TOOLS.for_server(""), NO_PATTERNS.for_server("")


class Reason(StrEnum):
    """Why a server or a tool is excluded."""

    UNKNOWN_SERVER = "unknown_server"
    NOT_ALLOWED = "not_allowed"
    NOT_SELECTED = "not_selected"
    NOT_REQUESTED = "not_requested"
    DENY_ALL = "deny_all"
    ENV_MISSING = "env_missing"
    SECRET_MISSING = "secret_missing"
    BAD_RECORD = "bad_record"
    DISABLED = "disabled"
    LIST_TIMEOUT = "list_timeout"
    LIST_FAILED = "list_failed"
    TOOL_DENIED = "tool_denied"
    TOOL_NOT_ALLOWED = "tool_not_allowed"
    NAME_COLLISION = "name_collision"


class NotAllowed(CallerError):
    """A session requested servers beyond its scope."""

    def __init__(self, scope: str, servers: Iterable[str]) -> None:
        requested = sorted(servers)
        names = ", ".join(repr(server) for server in requested)
        super().__init__(
            "not_allowed",
            f"This scope does not allow the server(s) {names}. Request fewer servers, or use another scope.",
            gate="scope",
            data={"reason": Reason.NOT_ALLOWED.value, "servers": requested, "scope": scope},
        )


class Exclusion(msgspec.Struct, frozen=True):
    """One line of the decision log. `subject` is the id of a server, or `server:tool`."""

    subject: str
    reason: Reason
    detail: str


class ToolFilter(msgspec.Struct, frozen=True):
    """One list that tools must pass (`allow`) or must not match. `origin` names where it is configured."""

    origin: str
    patterns: PatternSet
    allow: bool


class ServerFilter(msgspec.Struct, frozen=True):
    """All lists that apply to one server, outermost first."""

    server: str
    layers: tuple[ToolFilter, ...]

    def passing(self, names: Iterable[str], kind: PatternKind = PatternKind.TOOL) -> list[str]:
        """Return the names that pass every list: in all that allow, in none that denies."""
        passing = list(names)
        denied = _NOTHING
        for layer in self.layers:
            test = self._test(layer, kind)
            if layer.allow:
                passing = test.among(passing)
            else:
                denied = denied | test
        vetoed = set() if denied.nothing else set(denied.among(passing))
        return [name for name in passing if name not in vetoed] if vetoed else passing

    def explain(self, name: str, kind: PatternKind = PatternKind.TOOL) -> Exclusion | None:
        """Return the first list that excludes this name, denials first; None if none does."""
        subject = f"{self.server}:{name}"
        for layer in self.layers:
            if not layer.allow and layer.patterns.matches(self.server, name, kind):
                return Exclusion(subject, Reason.TOOL_DENIED, f"denied by {layer.origin}")
        for layer in self.layers:
            if layer.allow and not self._test(layer, kind)(name):
                return Exclusion(subject, Reason.TOOL_NOT_ALLOWED, f"not in {layer.origin}")
        return None

    def denies_lookalike(self, name: str, kind: PatternKind = PatternKind.TOOL) -> Exclusion | None:
        """Return the first list that denies a name that looks like this one."""
        for layer in self.layers:
            if not layer.allow and layer.patterns.matches_lookalike(self.server, name, kind):
                return Exclusion(f"{self.server}:{name}", Reason.TOOL_DENIED, f"looks like what {layer.origin} denies")
        return None

    def _test(self, layer: ToolFilter, kind: PatternKind) -> AnyOf:
        # A list of tools does not restrict resources and prompts unless it names some, or is empty.
        patterns = layer.patterns.patterns
        silent = kind is not PatternKind.TOOL and patterns and all(pattern.kind is not kind for pattern in patterns)
        if layer.allow and silent:
            return _EVERYTHING
        return layer.patterns.for_server(self.server, kind)


class Subset(msgspec.Struct, frozen=True, eq=False):
    """What one session sees. `revision` identifies the decision and is recorded with each call."""

    scope: str
    servers: tuple[str, ...]
    filters: Mapping[str, ServerFilter]
    log: tuple[Exclusion, ...]
    revision: str
    _known: dict[str, dict[str, bool]] = msgspec.field(default_factory=dict)

    def admits(self, server: str, tool: str) -> bool:
        """Whether this session sees that tool. The result is cached."""
        known = self._known.get(server)
        answer = known.get(tool) if known is not None else None
        return bool(self.admitted(server, (tool,))) if answer is None else answer

    def admitted(self, server: str, tools: Sequence[str]) -> list[str]:
        """Return the tools of a server that this session sees, in order. The results are cached for `admits`."""
        found = self.filters.get(server)
        if found is None:
            return []
        passing = found.passing(tools)
        known = self._known.setdefault(server, {})
        if len(known) + len(tools) <= MAX_REMEMBERED:
            known.update(dict.fromkeys(tools, False))
            known.update(dict.fromkeys(passing, True))
        return passing

    def admits_kind(self, server: str, name: str, kind: PatternKind) -> bool:
        """The same for a resource (by URI) or a prompt (by its own name)."""
        return bool(self.admitted_of_kind(server, (name,), kind))

    def admitted_of_kind(self, server: str, names: Sequence[str], kind: PatternKind) -> frozenset[str]:
        """Return the resources, prompts or tools of a server that this session sees."""
        found = self.filters.get(server)
        return frozenset(found.passing(names, kind)) if found is not None else frozenset()

    def denies_lookalike(self, server: str, name: str, kind: PatternKind) -> Exclusion | None:
        """Return the list that denies a name of that server that looks like this one, or None. For names that no server
        listed.
        """
        found = self.filters.get(server)
        return found.denies_lookalike(name, kind) if found is not None else None

    def explain(self, server: str, name: str, kind: PatternKind = PatternKind.TOOL) -> Exclusion | None:
        """Return why this session does not see that tool, or None if it does."""
        found = self.filters.get(server)
        if found is not None:
            return found.explain(name, kind)
        known = next((line for line in self.log if line.subject == server), None)
        return known or Exclusion(server, Reason.UNKNOWN_SERVER, "no such server in the registry")

    def after_listing(self, failures: Mapping[str, Exclusion]) -> Subset:
        """Return the subset with notes about servers whose listing failed. They remain callable."""
        noted = tuple(line for server, line in failures.items() if server in self.filters)
        return replace(self, log=self.log + noted) if noted else self


def compose(
    registry: Registry, scope: ScopePolicy, request: SessionRequest | None = None, *, strict: bool = True
) -> Subset:
    """Return the effective subset of a session, and the reason for every exclusion.

    With `strict`, servers that are requested by name beyond the scope's limit raise NotAllowed. After a reload the
    caller passes False and they are excluded instead, because registry and scope may have shrunk under an open session.
    """
    narrowing = request or SessionRequest()
    ceiling = frozenset(scope.ceiling(registry)) if scope.enabled else frozenset()
    if strict:
        _refuse_beyond(scope, ceiling, narrowing)
    base = ceiling if narrowing.server_lists else ceiling & frozenset(scope.selected(registry))
    filters: dict[str, ServerFilter] = {}
    log: list[Exclusion] = []
    for record in registry.records.values():
        layers = _layers(record, scope, narrowing)
        excluded = _exclusion(record, scope, narrowing, ceiling, base) or _deny_all(record.id, layers)
        if excluded is None:
            filters[record.id] = ServerFilter(record.id, layers)
        else:
            log.append(excluded)
    log += _unknown(registry, scope, narrowing)
    return Subset(
        scope=scope.name,
        servers=tuple(filters),
        filters=filters,
        log=tuple(log),
        revision=_revision(registry, scope, narrowing),
    )


def _refuse_beyond(scope: ScopePolicy, ceiling: frozenset[str], narrowing: SessionRequest) -> None:
    named = frozenset(scope.named_servers()) if scope.enabled else frozenset()
    # A server that the scope names but the registry lacks is not the caller's fault: it is excluded, with its reason.
    beyond = [server for server in narrowing.named_servers() if server not in ceiling and server not in named]
    if beyond:
        raise NotAllowed(scope.name, beyond)


def _exclusion(
    record: RegistryRecord, scope: ScopePolicy, narrowing: SessionRequest, ceiling: frozenset[str], base: frozenset[str]
) -> Exclusion | None:
    server = record.id
    if not scope.enabled:
        return Exclusion(server, Reason.DISABLED, f"scope {scope.name!r} is switched off")
    if server not in ceiling:
        return Exclusion(server, Reason.NOT_ALLOWED, f"scope {scope.name!r} does not allow this server")
    if scope.profile is not None and not scope.profile.keeps(server):
        return Exclusion(server, Reason.NOT_ALLOWED, f"profile {scope.profile.name!r} takes this server out")
    if server not in base:
        return Exclusion(server, Reason.NOT_SELECTED, f"allowed, but not a default server of scope {scope.name!r}")
    if not narrowing.asks_for(server):
        return Exclusion(server, Reason.NOT_REQUESTED, "the session requested other servers")
    if record.skipped is not None:
        return Exclusion(server, Reason(record.skipped.value), record.skip_detail)
    if not record.enabled:
        return Exclusion(server, Reason.DISABLED, "this server is switched off")
    return None


def _deny_all(server: str, layers: tuple[ToolFilter, ...]) -> Exclusion | None:
    empty = next((layer for layer in layers if layer.allow and not layer.patterns.patterns), None)
    return (
        None if empty is None else Exclusion(server, Reason.DENY_ALL, f"{empty.origin} is empty: every tool is denied")
    )


def _layers(record: RegistryRecord, scope: ScopePolicy, narrowing: SessionRequest) -> tuple[ToolFilter, ...]:
    profile = scope.profile
    lists = [
        ("the server's allowed_tools", record.allowed_tools, True),
        ("the server's denied tools", record.denied_tools, False),
        *(
            ("the profile's tool_allowlist", patterns, True)
            for patterns in (profile.tool_allowlists if profile else ())
        ),
        ("the profile's tool_denylist", profile.tool_denylist if profile else PatternSet(), False),
        ("the scope's tool_allowlist", scope.tool_allowlist, True),
        ("the scope's tool_denylist", scope.tool_denylist, False),
        *(("the session's list of tools", patterns, True) for patterns in narrowing.tool_allowlists),
        ("the session's denials", narrowing.tool_denylist, False),
    ]
    return tuple(
        ToolFilter(origin, patterns, allow)
        for origin, patterns, allow in lists
        if patterns is not None and (allow or patterns.patterns)
    )


def _unknown(registry: Registry, scope: ScopePolicy, narrowing: SessionRequest) -> list[Exclusion]:
    named = dict.fromkeys((*scope.named_servers(), *narrowing.named_servers()))
    missing = (server for server in named if server not in registry.records)
    return [Exclusion(server, Reason.UNKNOWN_SERVER, "no such server in the registry") for server in missing]


def _revision(registry: Registry, scope: ScopePolicy, narrowing: SessionRequest) -> str:
    # Equal inputs have equal texts; the digest only distinguishes decisions in an audit log.
    text = repr((scope, narrowing))
    return f"{registry.revision}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
