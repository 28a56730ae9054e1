"""The composition of platform, scope and session: each can only narrow, and every exclusion has a reason."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from taskgate.core.patterns import ALL_TOOLS, NO_PATTERNS, PatternKind, PatternSet
from taskgate.core.scoping import subset as subset_module
from taskgate.core.scoping.explain import ExplainRow, explain
from taskgate.core.scoping.profile import Narrowing, ResolvedProfile
from taskgate.core.scoping.registry import Registry, RegistryRecord, SkipReason
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.core.scoping.subset import Exclusion, NotAllowed, Reason, Subset, compose

FILES = RegistryRecord("files", tags=frozenset({"local"}))
REPORTS = RegistryRecord("reports")
SEARCH = RegistryRecord("search")
REGISTRY = Registry.build([FILES, REPORTS, SEARCH], revision=7)
ALL = ScopePolicy("all", default_servers=("*",))


def reasons(subset: Subset) -> dict[str, Reason]:
    return {line.subject: line.reason for line in subset.log}


def test_one_scope_with_all_servers_admits_everything() -> None:
    subset = compose(REGISTRY, ALL)
    assert subset.servers == ("files", "reports", "search")
    assert subset.log == ()
    assert subset.admits("files", "anything")
    assert not subset.admits("elsewhere", "anything")
    assert subset.revision.startswith("7-")


def test_without_a_request_the_default_servers_are_used() -> None:
    scope = ScopePolicy("work", ("files",), ("files", "reports"))
    subset = compose(REGISTRY, scope)
    assert subset.servers == ("files",)
    assert reasons(subset) == {"reports": Reason.NOT_SELECTED, "search": Reason.NOT_ALLOWED}


def test_a_session_may_choose_within_the_limit() -> None:
    scope = ScopePolicy("work", ("files",), ("files", "reports"))
    assert compose(REGISTRY, scope, SessionRequest.parse("reports")).servers == ("reports",)
    assert compose(REGISTRY, scope, SessionRequest.parse("*")).servers == ("files", "reports")
    assert reasons(compose(REGISTRY, scope, SessionRequest.parse("reports")))["files"] is Reason.NOT_REQUESTED


def test_a_request_beyond_the_limit_is_refused_and_names_the_servers() -> None:
    scope = ScopePolicy("work", ("files",))
    with pytest.raises(NotAllowed) as caught:
        compose(REGISTRY, scope, SessionRequest.parse("search,files,nowhere"))
    assert caught.value.error_type == "not_allowed"
    assert caught.value.data == {"reason": "not_allowed", "servers": ["nowhere", "search"], "scope": "work"}


def test_the_refusal_is_the_same_whether_or_not_the_server_exists() -> None:
    messages = []
    for asked in ("search", "nowhere"):
        with pytest.raises(NotAllowed) as caught:
            compose(REGISTRY, ScopePolicy("work", ("files",)), SessionRequest.parse(asked))
        messages.append(caught.value.message.replace(asked, "X"))
    assert messages[0] == messages[1]


def test_a_reduced_scope_omits_servers_of_an_open_session_instead_of_refusing() -> None:
    subset = compose(REGISTRY, ScopePolicy("work", ("files",)), SessionRequest.parse("files,search"), strict=False)
    assert subset.servers == ("files",)
    assert reasons(subset)["search"] is Reason.NOT_ALLOWED


def test_a_server_of_the_scope_that_is_not_registered_is_not_an_error_of_the_caller() -> None:
    scope = ScopePolicy("work", ("files", "gone"))
    assert reasons(compose(REGISTRY, scope, SessionRequest.parse("files,gone")))["gone"] is Reason.UNKNOWN_SERVER


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (replace(FILES, allowed_tools=NO_PATTERNS), Reason.DENY_ALL),
        (replace(FILES, enabled=False), Reason.DISABLED),
        (replace(FILES, skipped=SkipReason.ENV_MISSING, skip_detail="TOKEN is not set"), Reason.ENV_MISSING),
        (replace(FILES, skipped=SkipReason.SECRET_MISSING, skip_detail="${file:x} is gone"), Reason.SECRET_MISSING),
        (replace(FILES, skipped=SkipReason.BAD_RECORD), Reason.BAD_RECORD),
    ],
)
def test_an_unavailable_server_is_omitted_alone(record: RegistryRecord, reason: Reason) -> None:
    subset = compose(Registry.build([record, REPORTS]), ALL)
    assert subset.servers == ("reports",)
    assert reasons(subset) == {"files": reason}
    found = subset.explain("files", "read")
    assert found is not None
    assert found.reason is reason


def test_a_scope_that_is_switched_off_shows_nothing_and_allows_nothing() -> None:
    off = replace(ALL, enabled=False)
    assert set(reasons(compose(REGISTRY, off)).values()) == {Reason.DISABLED}
    with pytest.raises(NotAllowed):
        compose(REGISTRY, replace(off, default_servers=("files",)), SessionRequest.parse("files"))


def test_every_list_narrows_and_a_denial_is_final() -> None:
    record = replace(FILES, allowed_tools=PatternSet.of(["read_*", "write_*"]), denied_tools=PatternSet.of(["*_root"]))
    profile = ResolvedProfile("p", ("files",), (), (), (), (PatternSet.of(["*"]),), PatternSet.of(["write_log"]))
    scope = ScopePolicy(
        "work", profile=profile, tool_allowlist=PatternSet.of(["*_file", "*_root", "write_log", "read_b"]),
        tool_denylist=PatternSet.of(["files:read_b"]),
    )  # fmt: skip
    request = SessionRequest.parse(tools="*,-write_file")
    subset = compose(Registry.build([record]), scope, request)
    table = {
        "read_file": None,
        "stat": "not in the server's allowed_tools",
        "read_root": "denied by the server's denied tools",
        "write_log": "denied by the profile's tool_denylist",
        "read_a": "not in the scope's tool_allowlist",
        "read_b": "denied by the scope's tool_denylist",
        "write_file": "denied by the session's denials",
    }
    for tool, detail in table.items():
        why = subset.explain("files", tool)
        assert (why.detail if why else None) == detail
        assert subset.admits("files", tool) is (why is None)
        assert subset.admits("files", tool) is (why is None), "the remembered answer is the same"


def test_a_profile_can_exclude_servers() -> None:
    profile = ResolvedProfile("p", ("*",)).narrowed(Narrowing(exclude_servers=("reports",)))
    subset = compose(REGISTRY, ScopePolicy("work", profile=profile))
    assert subset.servers == ("files", "search")
    assert reasons(subset) == {"reports": Reason.NOT_ALLOWED}


def test_a_session_that_lists_no_tools_sees_none() -> None:
    subset = compose(REGISTRY, ALL, SessionRequest.parse(tools=""))
    assert subset.servers == ()
    assert set(reasons(subset).values()) == {Reason.DENY_ALL}


def test_tool_lists_do_not_restrict_resources_and_prompts_unless_they_name_some() -> None:
    scope = replace(
        ALL,
        tool_allowlist=PatternSet.of(["read_*", "prompt:greet*"]),
        tool_denylist=PatternSet.of(["resource:file:///etc/*"]),
    )
    subset = compose(REGISTRY, scope)
    assert subset.admits_kind("files", "greeting", PatternKind.PROMPT)
    assert not subset.admits_kind("files", "other", PatternKind.PROMPT)
    assert subset.admits_kind("files", "file:///home/a", PatternKind.RESOURCE)
    assert not subset.admits_kind("files", "file:///etc/passwd", PatternKind.RESOURCE)
    assert not subset.admits_kind("nowhere", "x", PatternKind.PROMPT)
    assert subset.explain("files", "other", PatternKind.PROMPT) is not None


def test_a_list_of_prompts_alone_admits_no_tools() -> None:
    assert not compose(REGISTRY, replace(ALL, tool_allowlist=PatternSet.of(["prompt:*"]))).admits("files", "read")


def test_an_unknown_server_has_its_own_reason() -> None:
    assert compose(REGISTRY, ALL).explain("nowhere", "x") == Exclusion(
        "nowhere", Reason.UNKNOWN_SERVER, "no such server in the registry"
    )


def test_a_failed_listing_is_noted_and_affects_only_its_server() -> None:
    subset = compose(REGISTRY, ALL)
    noted = subset.after_listing({"files": Exclusion("files", Reason.LIST_TIMEOUT, "no answer within 5 s")})
    assert noted.servers == subset.servers
    assert reasons(noted) == {"files": Reason.LIST_TIMEOUT}
    assert subset.after_listing({}) is subset
    assert subset.after_listing({"nowhere": Exclusion("nowhere", Reason.LIST_FAILED, "x")}) is subset


def test_the_cache_of_decisions_is_bounded_and_decisions_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subset_module, "MAX_REMEMBERED", 2)
    subset = compose(REGISTRY, replace(ALL, tool_allowlist=PatternSet.of(["t*"])))
    assert [subset.admits("files", f"t{i}") for i in range(4)] == [True] * 4
    assert len(subset._known["files"]) == 2
    assert subset.admitted("files", ["t1", "x", "t9"]) == ["t1", "t9"]
    assert subset.admitted("nowhere", ["t1"]) == []


def test_the_revision_tells_decisions_apart_and_is_stable() -> None:
    one, same = compose(REGISTRY, ALL), compose(REGISTRY, ALL)
    other = compose(REGISTRY, ALL, SessionRequest.parse(tools="-x"))
    assert one.revision == same.revision != other.revision


def test_explain_lists_every_server_and_tool_with_its_reason() -> None:
    scope = ScopePolicy("work", ("files",), tool_denylist=PatternSet.of(["drop_*"]))
    subset = compose(REGISTRY, scope).after_listing({"files": Exclusion("files", Reason.LIST_FAILED, "broken pipe")})
    assert explain(subset, {"files": ["read", "drop_all"]})[:3] == (
        ExplainRow("files", "", True, "list_failed", "broken pipe"),
        ExplainRow("files", "read", True, "", ""),
        ExplainRow("files", "drop_all", False, "tool_denied", "denied by the scope's tool_denylist"),
    )
    assert [(row.server, row.seen, row.reason) for row in explain(subset)] == [
        ("files", True, "list_failed"),
        ("reports", False, "not_allowed"),
        ("search", False, "not_allowed"),
    ]


SERVERS = ("a", "b", "c")
TOOLS = ("read", "read_all", "write", "drop")
GLOBS = ("*", "read*", "*l*", "drop", "a:*", "b:w*", "write", "c:read", "?rop")
HOW_MANY = 150
"""How many different lists, records and scopes there are to draw from."""
chance = random.Random(2026)
# The parts are generated once and then chosen as a whole: generating each of them again would take most of the time.
_SETS = [PatternSet.of(chance.sample(GLOBS, chance.choice((0, 1, 1, 2, 3, 4)))) for _ in range(HOW_MANY)]
_SERVERS = [("*",), *(tuple(chance.choices([*SERVERS, "*", "[ab]", "gone"], k=k)) for k in (0, 1, 1, 1, 2, 2, 2, 3, 3))]


def _some(*choices: Any) -> Any:
    """One of these; a list means any of its members."""
    chosen = chance.choice(choices)
    return chance.choice(chosen) if isinstance(chosen, list) else chosen


def _mostly(usual: Any, rare: Any) -> Any:
    """With too many things disabled the result would be empty, and no error could be detected."""
    return chance.choice([usual] * 7 + [rare])


def _a_record() -> RegistryRecord:
    return RegistryRecord(
        "x",
        allowed_tools=_some(ALL_TOOLS, _SETS),
        denied_tools=_some(NO_PATTERNS, _SETS),
        tags=frozenset(chance.sample(["t", "u"], chance.randint(0, 2))),
        enabled=_mostly(True, False),
        skipped=_mostly(None, SkipReason.ENV_MISSING),
    )


def _a_profile() -> ResolvedProfile:
    lists = _some((), [(one,) for one in _SETS])
    servers, without = _some(("*",), _SERVERS), _some((), _SERVERS)
    return ResolvedProfile("p", servers, ("t",), (), without, lists, _some(NO_PATTERNS, _SETS))


def _a_scope() -> ScopePolicy:
    profile = _some(None, [_a_profile()])
    defaults, allowed = _some(("*",), _SERVERS), _some(None, _SERVERS)
    tags, allow, deny = _some((), ("u",)), _some(None, _SETS), _some(NO_PATTERNS, _SETS)
    return ScopePolicy("s", defaults, allowed, allow, deny, profile, tags, enabled=_mostly(True, False))


def _a_registry() -> Registry:
    return Registry.build(replace(_a_record(), id=name) for name in SERVERS)


def _a_request() -> SessionRequest:
    asked, allowed = _some((), (("a", "b"),), (("*",),)), _some((), [(one,) for one in _SETS])
    return SessionRequest(asked, allowed, _some(NO_PATTERNS, _SETS))


_sets, _servers = st.sampled_from(_SETS), st.sampled_from(_SERVERS)
_registries = st.sampled_from([_a_registry() for _ in range(HOW_MANY)])
_scopes = st.sampled_from([_a_scope() for _ in range(HOW_MANY)])
_requests = st.sampled_from([_a_request() for _ in range(HOW_MANY)])


def seen(registry: Registry, scope: ScopePolicy, request: SessionRequest) -> set[tuple[str, str]]:
    subset = compose(registry, scope, request, strict=False)
    return {(server, tool) for server in SERVERS for tool in TOOLS if subset.admits(server, tool)}


@settings(max_examples=200)
@given(_registries, _scopes, _requests, st.sampled_from(SERVERS), _sets)
def test_a_constraint_in_the_registry_never_adds_a_tool(
    registry: Registry, scope: ScopePolicy, request: SessionRequest, server: str, more: PatternSet
) -> None:
    record = registry.records[server]
    constraints = {
        "disable": replace(record, enabled=False),
        "skipped": replace(record, skipped=SkipReason.ENV_MISSING),
        "deny": replace(record, denied_tools=record.denied_tools | more),
        "shorten": replace(record, allowed_tools=PatternSet(record.allowed_tools.patterns[1:])),
        "empty": replace(record, allowed_tools=NO_PATTERNS),
        "remove": None,
    }
    before = seen(registry, scope, request)
    for how, tighter in constraints.items():
        others = [tighter if r.id == server else r for r in registry.records.values()]
        after = Registry.build(r for r in others if r is not None)
        assert seen(after, scope, request) <= before, how


@settings(max_examples=200)
@given(_registries, _scopes, _requests, _sets, _servers)
def test_a_constraint_in_the_scope_never_adds_a_tool(
    registry: Registry,
    scope: ScopePolicy,
    request: SessionRequest,
    more: PatternSet,
    servers: tuple[str, ...],
) -> None:
    profile = scope.profile
    constraints = {
        "disable": replace(scope, enabled=False),
        "allow": replace(scope, tool_allowlist=more if scope.tool_allowlist is None else scope.tool_allowlist),
        "shorten": replace(
            scope, tool_allowlist=scope.tool_allowlist and PatternSet(scope.tool_allowlist.patterns[1:])
        ),
        "empty": replace(scope, tool_allowlist=NO_PATTERNS),
        "deny": replace(scope, tool_denylist=scope.tool_denylist | more),
        # An empty default with a profile means "the profile's own": that is a choice, not a constraint.
        "drop_default": replace(scope, default_servers=scope.default_servers[1:] or scope.default_servers),
        "drop_allowed": replace(scope, allowed_servers=scope.allowed_servers and scope.allowed_servers[1:]),
        "narrow": replace(scope, profile=profile and profile.narrowed(Narrowing(servers, servers[:1], more, more))),
        "profile_list": replace(scope, profile=profile and profile.narrowed(Narrowing(tool_allowlist=more))),
    }
    before = seen(registry, scope, request)
    for how, tighter in constraints.items():
        assert seen(registry, tighter, request) <= before, how


@settings(max_examples=200)
@given(_registries, _scopes, _requests, _servers, _sets, _sets)
def test_a_constraint_of_the_session_never_adds_a_tool(
    registry: Registry,
    scope: ScopePolicy,
    request: SessionRequest,
    servers: tuple[str, ...],
    allow: PatternSet,
    deny: PatternSet,
) -> None:
    tools_only = request.narrowed(SessionRequest((), (allow,), deny))
    assert seen(registry, scope, tools_only) <= seen(registry, scope, request)
    # A request for servers selects within the limit instead of the default; further lists only narrow the selection.
    chosen = request.narrowed(SessionRequest((("*",),)))
    assert seen(registry, scope, chosen.narrowed(SessionRequest((servers,)))) <= seen(registry, scope, chosen)
    assert seen(registry, scope, request) <= seen(registry, scope, SessionRequest((("*",),))), "the limit holds for all"


@given(_registries, _scopes, _requests)
def test_visible_entries_have_no_reason_and_hidden_ones_have_one(
    registry: Registry, scope: ScopePolicy, request: SessionRequest
) -> None:
    subset = compose(registry, scope, request, strict=False)
    for server in SERVERS:
        for tool in TOOLS:
            assert subset.admits(server, tool) is (subset.explain(server, tool) is None)


def test_a_name_that_looks_like_a_denied_one_is_denied_with_its_list() -> None:
    subset = compose(REGISTRY, replace(ALL, tool_denylist=PatternSet.of(("files:drop",))))
    denied = subset.denies_lookalike("files", "DROP", PatternKind.TOOL)
    assert denied is not None
    assert denied.detail == "looks like what the scope's tool_denylist denies"
    assert subset.denies_lookalike("files", "read", PatternKind.TOOL) is None
    assert subset.denies_lookalike("nowhere", "DROP", PatternKind.TOOL) is None
