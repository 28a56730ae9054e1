"""Compare the decisions of two configurations: `taskgate policy diff`. Nothing is sent.

Names come from the servers' lists if those are given, else from the patterns of both configurations: of each pattern one name
that it matches, and one name that none matches. Every name is decided by the functions that decide a call, for every caller that
the configurations name. What depends on arguments remains open and is described. Standing grants and quarantined definitions exist
only in the running gateway, so they are not considered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from taskgate.assembly.identity import configured_identities
from taskgate.assembly.listing import listed_servers
from taskgate.config.load import LoadedConfig
from taskgate.core import wire
from taskgate.core.catalog.entry import NAMED_BY, CatalogEntry, EntryKind, read_entry
from taskgate.core.catalog.names import alike_names
from taskgate.core.catalog.own_tool_names import OWN_SERVER, OwnToolName
from taskgate.core.errors import TaskgateError
from taskgate.core.facts.table import Facts
from taskgate.core.globs import PatternError
from taskgate.core.governance.decision import Decision, Denied, Gate, NeedsApproval, NeedsPolicy
from taskgate.core.governance.decision_changes import (
    ACCESS,
    NO_ACCESS,
    SCOPE,
    ChangedName,
    DecisionChange,
    DecisionOutcome,
    ScopeChange,
    grouped,
)
from taskgate.core.governance.pipeline import UNKNOWN, decide_listed, workflow_named
from taskgate.core.identity.access import Access, TargetScope
from taskgate.core.identity.access import decide as decide_access
from taskgate.core.identity.caller import Caller
from taskgate.core.identity.identity import NO_REQUIREMENT, Identity
from taskgate.core.patterns import Pattern, PatternKind
from taskgate.core.risk import Risk
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.scoping.subset import Subset, compose
from taskgate.core.settings.gateway_file import GatewayFile
from taskgate.core.settings.scopes import ProfileOverrides, Scope, ScopeProfile
from taskgate.gateway.catalog.offer import LISTS
from taskgate.gateway.catalog.views import facts_of_caller
from taskgate.gateway.plan import Plan

Lists = Mapping[str, Mapping[EntryKind, tuple[CatalogEntry, ...]]]
"""The lists of servers, as far as they are known."""
_KINDS = {
    EntryKind.TOOL: PatternKind.TOOL,
    EntryKind.RESOURCE: PatternKind.RESOURCE,
    EntryKind.TEMPLATE: PatternKind.RESOURCE,
    EntryKind.PROMPT: PatternKind.PROMPT,
}
_NAMED_SERVERS = 5
_OTHER = {PatternKind.TOOL: "any_other_tool", PatternKind.RESOURCE: "any:other", PatternKind.PROMPT: "any_other_prompt"}
"""Names that stand for all that no pattern matches."""


class Name(msgspec.Struct, frozen=True):
    """A name that is decided in both versions."""

    kind: PatternKind
    server: str
    name: str
    pattern: str = ""
    """The pattern that it is an example of; empty for a listed name."""
    alike: tuple[str, ...] = ()
    """Other names of the server's list that look like it."""
    entry: CatalogEntry | None = None
    """Its definition, if it is listed."""


class PolicyDiff(msgspec.Struct, frozen=True):
    changes: list[DecisionChange]
    incomplete: list[str]
    """Servers that cannot be compared because a version skips them, with the reason."""
    names: int
    """How many names were compared."""
    callers: list[str]
    notes: list[str]


class InvalidLists(ValueError):
    """A file of lists has another form."""


def compare_policies(old: LoadedConfig, new: LoadedConfig, plans: tuple[Plan, Plan], lists: Lists) -> PolicyDiff:
    before, after = _Version(old.root, plans[0]), _Version(new.root, plans[1])
    skipped = {**_skipped(before.plan), **_skipped(after.plan)}
    names = [name for name in _names(before, after, lists) if name.server not in skipped]
    scopes = {scope: None for version in (before, after) for scope in version.plan.scopes}
    callers = {caller: None for version in (before, after) for caller in version.callers}
    found = [each for scope in scopes for each in _found(before, after, scope, callers, names)]
    callers_of = {
        scope: [each for each in callers if before.may_use(scope, each) and after.may_use(scope, each)]
        for scope in scopes
    }
    changes = grouped(found, callers_of)
    return PolicyDiff(
        changes,
        incomplete=[f"{server} cannot be compared: {why}" for server, why in skipped.items()],
        names=len(names),
        callers=list(callers),
        notes=_notes(before, after, names),
    )


def _skipped(plan: Plan) -> dict[str, str]:
    """Return the servers whose settings are not known because a variable or secret is missing here, with the reason."""
    return {name: record.skip_detail for name, record in plan.registry.records.items() if record.skipped is not None}


class _Version:
    """One of the two configurations."""

    def __init__(self, root: GatewayFile, plan: Plan) -> None:
        self.root, self.plan = root, plan
        self.callers: dict[str, Identity] = {each.principal: each for each in configured_identities(root)}
        self._subsets: dict[str, Subset] = {}
        self._outcomes: dict[tuple[Any, ...], DecisionOutcome] = {}

    def may_use(self, scope: str, caller: str) -> bool:
        identity = self.callers.get(caller)
        if identity is None:
            return False
        configured = self.root.scopes.get(scope)
        requirement = (configured.require if configured is not None else None) or NO_REQUIREMENT
        target = TargetScope(scope, exists=scope in self.plan.scopes, requirement=requirement)
        return decide_access(Access.CALL, identity, target, frozenset(), anonymous=True) is None

    def has_scripts(self, scope: str) -> bool:
        found = self.root.scopes.get(scope)
        return found is not None and found.scripts == "on"

    def subset(self, scope: str) -> Subset:
        found = self._subsets.get(scope)
        if found is None:
            policy = self.plan.scopes.get(scope) or ScopePolicy(scope, enabled=False)
            found = self._subsets[scope] = compose(self.plan.registry, policy)
        return found

    def key(self, scope: str, caller: str) -> object:
        """Return what the rules distinguish this caller by."""
        return self.plan.gates.caller_key(self._facts(scope, caller))

    def _facts(self, scope: str, caller: str, *, from_script: bool = False) -> Facts:
        roles = self.callers[caller].roles
        return facts_of_caller(self.plan, Caller(caller, roles, scope), from_script=from_script)

    def outcome(self, scope: str, name: Name, caller: str, *, from_script: bool) -> DecisionOutcome:
        """Return the outcome for a caller that may use the scope. What depends on the call remains open."""
        facts = self._facts(scope, caller, from_script=from_script)
        key = (scope, name.kind, name.server, name.name, self.plan.gates.caller_key(facts))
        found = self._outcomes.get(key)
        if found is None:
            found = self._outcomes[key] = self._outcome(self._decision(scope, name, facts), name)
        return found

    def _decision(self, scope: str, name: Name, caller: Facts) -> Decision:
        gates, subset = self.plan.gates.of_caller(caller), self.subset(scope)
        if name.server != OWN_SERVER:
            excluded = subset.explain(name.server, name.name, name.kind)
            if excluded is None and name.alike:
                excluded = subset.denies_lookalike(name.server, name.name, name.kind)
            if excluded is not None:
                return Denied(Gate.VISIBILITY, f"{excluded.reason.value}: {excluded.detail}", UNKNOWN)
        return decide_listed(gates, name.kind, name.server, name.name, name.alike, risk_of=lambda _: self._risk(name))

    def _risk(self, name: Name) -> Risk:
        declared = name.entry.traits.risk if name.entry is not None else Risk.UNDECLARED
        return self.plan.risk_of(name.server, name.name, declared)

    def _outcome(self, decision: Decision, name: Name) -> DecisionOutcome:
        policy = self.plan.governing.policy if isinstance(decision, NeedsPolicy) else None
        return DecisionOutcome(
            decision,
            as_task=not isinstance(decision, Denied)
            and name.kind is PatternKind.TOOL
            and any(self.plan.gates.rules.forced(name.server, each) for each in (name.name, *name.alike)),
            workflow=workflow_named(self.plan.gates, decision.workflow)
            if isinstance(decision, NeedsApproval)
            else None,
            policies=policy.revision if policy is not None else "",
        )


def _found(
    before: _Version, after: _Version, scope: str, callers: Iterable[str], names: Iterable[Name]
) -> Iterator[ScopeChange]:
    old, new = ({caller for caller in callers if version.may_use(scope, caller)} for version in (before, after))
    access = ChangedName(kind=SCOPE, name=scope)
    lost, gained = (tuple(each for each in callers if each in some) for some in (old - new, new - old))
    if lost:
        yield ScopeChange(subject=access, scope=scope, callers=lost, before=ACCESS, after=NO_ACCESS)
    if gained:
        yield ScopeChange(subject=access, scope=scope, callers=gained, before=NO_ACCESS, after=ACCESS)
    may_use = tuple(each for each in callers if each in old & new)
    if not may_use:
        return
    has_scripts = before.has_scripts(scope) or after.has_scripts(scope)
    groups = _grouped(before, after, scope, may_use)
    for name in names:
        if name.server == OWN_SERVER and name.name == OwnToolName.RUN_SCRIPT and not has_scripts:
            continue
        subject = ChangedName(kind=name.kind.value, server=name.server, name=name.name, pattern=name.pattern)
        alike: dict[tuple[ChangedName, tuple[str, str]], list[str]] = {}
        for group in groups:
            for found in _changes(before, after, scope, name, caller=group[0], subject=subject):
                alike.setdefault(found, []).extend(group)
        for (about, (was, now)), of in alike.items():
            if has_scripts or not about.from_script:
                yield ScopeChange(
                    subject=about,
                    scope=scope,
                    callers=tuple(each for each in may_use if each in of),
                    before=was,
                    after=now,
                )


def _grouped(before: _Version, after: _Version, scope: str, callers: Iterable[str]) -> list[list[str]]:
    """Return the callers in groups that no rule distinguishes."""
    found: dict[object, list[str]] = {}
    for caller in callers:
        found.setdefault((before.key(scope, caller), after.key(scope, caller)), []).append(caller)
    return list(found.values())


def _changes(
    before: _Version, after: _Version, scope: str, name: Name, *, caller: str, subject: ChangedName
) -> Iterator[tuple[ChangedName, tuple[str, str]]]:
    """Yield the change for calls of the caller, and the one for calls of its scripts if that is another one."""
    plain = _change(before, after, scope, name, caller, from_script=False)
    if plain is not None:
        yield subject, plain
    if name.kind is PatternKind.TOOL:
        in_scripts = _change(before, after, scope, name, caller, from_script=True)
        if in_scripts is not None and in_scripts != plain:
            yield msgspec.structs.replace(subject, from_script=True), in_scripts


def _change(
    before: _Version, after: _Version, scope: str, name: Name, caller: str, *, from_script: bool
) -> tuple[str, str] | None:
    """Return the texts of both outcomes, or None if the effect is the same."""
    old, new = (version.outcome(scope, name, caller, from_script=from_script) for version in (before, after))
    return None if old.effect == new.effect else (old.text(), new.text_after(old))


def _notes(before: _Version, after: _Version, names: Iterable[Name]) -> list[str]:
    notes = []
    without = sorted({name.server for name in names if name.pattern and name.kind is PatternKind.TOOL})
    if without:
        more = f" and {len(without) - _NAMED_SERVERS} other servers" if len(without) > _NAMED_SERVERS else ""
        known = f"The tools of {', '.join(without[:_NAMED_SERVERS])}{more} are not known"
        notes.append(
            f"{known}, so examples of the names in the patterns were compared. Use --lists, --gateway or --connect."
        )
    if any(version.root.auth.jwt or version.root.auth.introspection for version in (before, after)):
        notes.append("Callers with tokens of issuers are not compared; the configurations do not name them.")
    return notes


def _names(before: _Version, after: _Version, lists: Lists) -> Iterator[Name]:
    servers = dict.fromkeys((*before.plan.registry.records, *after.plan.registry.records))
    patterns = list(dict.fromkeys((*_patterns(before.root), *_patterns(after.root))))
    for server in servers:
        listed = lists.get(server, {})
        for list_kind, entries in listed.items():
            if list_kind in _KINDS:
                yield from _listed(server, list_kind, entries)
        known = {_KINDS[list_kind] for list_kind in listed if list_kind in _KINDS}
        of_server = [pattern for limit, pattern in patterns if limit in ("", server) and pattern.server.matches(server)]
        for kind in PatternKind:
            if kind not in known:
                yield from _examples(server, kind, [pattern for pattern in of_server if pattern.kind is kind])
    yield from (Name(PatternKind.TOOL, OWN_SERVER, name) for name in _own_tools(before, after))


def _listed(server: str, kind: EntryKind, entries: tuple[CatalogEntry, ...]) -> Iterator[Name]:
    names = [entry.name for entry in entries]
    alike = alike_names(names) if kind in (EntryKind.TOOL, EntryKind.PROMPT) else {}
    for entry in {entry.name: entry for entry in entries}.values():
        yield Name(_KINDS[kind], server, entry.name, alike=alike.get(entry.name, ()), entry=entry)


def _examples(server: str, kind: PatternKind, patterns: list[Pattern]) -> Iterator[Name]:
    """Of each pattern one name that it matches, and one name that only patterns for everything match."""
    examples: dict[str, str] = {}
    for pattern in patterns:
        name = None if pattern.name.everything else pattern.name.example()
        if name is not None:
            examples.setdefault(name, "" if pattern.name.literal else pattern.name.text)
    other = _OTHER[kind]
    while any(pattern.name.matches(other) and not pattern.name.everything for pattern in patterns) and len(other) < 40:
        other += "_"
    examples.setdefault(other, "*")
    for name, text in examples.items():
        yield Name(kind, server, name, pattern=text)


def _patterns(root: GatewayFile) -> Iterator[tuple[str, Pattern]]:
    """Every pattern of a configuration, with the server that it is limited to by its place, or an empty text."""
    texts = [(rule.server or "", rule.match) for rule in root.governance.rules]
    texts += [("", text) for text in root.governance.force_required]
    for server, settings in root.servers.items():
        of_server = (*settings.expose.tools, *settings.allowed_tools, *settings.approval_policy.tools)
        texts += [(server, text) for text in of_server]
    lists: list[ScopeProfile | ProfileOverrides | Scope] = [*root.profiles.values(), *root.scopes.values()]
    lists += [scope.profile_overrides for scope in root.scopes.values()]
    for each in lists:
        texts += [("", text) for text in (*(each.tool_allowlist or ()), *each.tool_denylist)]
    for server, text in texts:
        with suppress(PatternError):
            yield server, Pattern.compile(text)


def _own_tools(before: _Version, after: _Version) -> Iterator[str]:
    """The gateway's own tools that rules decide about, as far as a configuration offers them."""
    if any(version.has_scripts(scope) for version in (before, after) for scope in version.root.scopes):
        yield OwnToolName.RUN_SCRIPT.value
    if any(version.plan.add_server in ("session", "on") for version in (before, after)):
        yield from (OwnToolName.ADD_SERVER.value, OwnToolName.REMOVE_SERVER.value, OwnToolName.RECONNECT_SERVER.value)


async def lists_of_servers(old: LoadedConfig, new: LoadedConfig, plans: tuple[Plan, Plan]) -> tuple[Lists, list[str]]:
    """Connect to the servers of both configurations and fetch their lists; those of the new one count if both have the server.
    Also return why servers have none."""
    lists: dict[str, Mapping[EntryKind, tuple[CatalogEntry, ...]]] = {}
    notes: list[str] = []
    for loaded, plan in ((new, plans[1]), (old, plans[0])):
        chosen = [name for name, record in plan.registry.records.items() if record.enabled and name not in lists]
        async with listed_servers(loaded, plan.limits, chosen) as catalogs:
            for server in chosen:
                offer, problem = catalogs.offer(server), catalogs.failure(server)
                if offer is not None:
                    lists[server] = offer.entries
                elif problem is not None:
                    notes.append(loaded.secret_values.text(f"{server}: {problem.message}"))
    return lists, notes


def lists_of_value(value: Any) -> Lists:
    """Read lists from a JSON value: by server a list of tools, or the lists of a server as in MCP (`tools`, `resources`,
    `resourceTemplates`, `prompts`). Each entry is a name or a whole definition. Raises InvalidLists."""
    if not isinstance(value, Mapping):
        raise InvalidLists("must be an object with servers")
    return {server: _lists_of(server, lists) for server, lists in value.items()}


def _lists_of(server: str, value: Any) -> Mapping[EntryKind, tuple[CatalogEntry, ...]]:
    keys = {LISTS[kind].key: kind for kind in _KINDS}
    given = {"tools": value} if isinstance(value, list) else value
    if not isinstance(given, Mapping) or not given.keys() <= keys.keys():
        raise InvalidLists(f"{server}: must be a list of tools, or an object with {', '.join(keys)}")
    found: dict[EntryKind, tuple[CatalogEntry, ...]] = {}
    for key, entries in given.items():
        if not isinstance(entries, list):
            raise InvalidLists(f"{server}.{key}: must be a list")
        found[keys[key]] = tuple(_entry(server, keys[key], entry) for entry in entries)
    return found


def _entry(server: str, kind: EntryKind, value: Any) -> CatalogEntry:
    definition = {NAMED_BY[kind]: value} if isinstance(value, str) else value
    try:
        entry = read_entry(kind, server, wire.Raw(wire.encode(definition))) if isinstance(definition, Mapping) else None
    except TaskgateError as problem:
        raise InvalidLists(f"{server}: {problem.message}") from None
    if entry is None:
        raise InvalidLists(
            f"{server}: an entry of {LISTS[kind].key} is neither a name nor a definition with {NAMED_BY[kind]}"
        )
    return entry
