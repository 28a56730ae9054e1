"""Registry records, scopes, profiles and session requests: what is accepted, what is refused, and with which error."""

from __future__ import annotations

import pytest

from taskgate.core.globs import PatternError
from taskgate.core.patterns import ALL_TOOLS, PatternSet
from taskgate.core.scoping.profile import Narrowing, Profile, ProfileError, ResolvedProfile, resolve_profile
from taskgate.core.scoping.registry import (
    ApprovalDemand,
    ApprovalPolicy,
    Registry,
    RegistryRecord,
    TransportKind,
    problem_of_server_id,
)
from taskgate.core.scoping.scope import HelperTools, ScopeMode, ScopePolicy, check
from taskgate.core.scoping.session_request import MAX_ENTRIES, MAX_TEXT, RequestError, SessionRequest

FILES = RegistryRecord("files", TransportKind.STDIO, tags=frozenset({"local"}))
REPORTS = RegistryRecord("reports", tags=frozenset({"slow"}))
REGISTRY = Registry.build([FILES, REPORTS])


@pytest.mark.parametrize("server", ["files", "a", "my-server", "a.b", "a_b", "X1"])
def test_an_ordinary_server_id_is_valid(server: str) -> None:
    assert problem_of_server_id(server) is None


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ("", "cannot be used"),
        ("_a", "cannot be used"),
        ("a_", "cannot be used"),
        ("a__b", "cannot be used"),
        ("a b", "cannot be used"),
        ("a/b", "cannot be used"),
        ("ａ", "cannot be used"),
        ("a" * 65, "longer than 64"),
        ("resource", "reserved"),
        ("MCP", "reserved"),
    ],
)
def test_a_confusing_server_id_is_refused(server: str, problem: str) -> None:
    assert problem in str(problem_of_server_id(server))


def test_the_registry_keeps_good_records_in_order_and_reports_the_others() -> None:
    registry = Registry.build(
        [FILES, RegistryRecord("bad id"), REPORTS, RegistryRecord("files"), RegistryRecord("Files")]
    )
    assert list(registry.records) == ["files", "reports"]
    assert registry.records["files"] is FILES
    assert [problem.server for problem in registry.problems] == ["bad id", "files", "Files"]
    assert "two servers" in registry.problems[1].message
    assert "look alike" in registry.problems[2].message
    assert registry.tags == {"local", "slow"}
    assert Registry.build([]).tags == frozenset()


def test_the_revision_grows_only_when_something_changed() -> None:
    assert REGISTRY.replaced_by([FILES, REPORTS]) is REGISTRY
    assert REGISTRY.replaced_by([FILES]).revision == 2
    assert REGISTRY.replaced_by([REPORTS, FILES]).revision == 2
    assert REGISTRY.replaced_by([FILES, REPORTS, RegistryRecord("bad id")]).revision == 2


def test_a_records_approval_policy_takes_the_first_match_then_the_default() -> None:
    policy = ApprovalPolicy(
        ApprovalDemand.FORWARD,
        ((PatternSet.of(["drop_*"]), ApprovalDemand.DENY), (PatternSet.of(["d*"]), ApprovalDemand.APPROVE)),
    )
    assert policy.for_tool("files", "drop_all") is ApprovalDemand.DENY
    assert policy.for_tool("files", "delete") is ApprovalDemand.APPROVE
    assert policy.for_tool("files", "read") is ApprovalDemand.FORWARD


def test_a_scope_selects_by_id_glob_and_tag() -> None:
    assert ScopePolicy(default_servers=("*",)).selected(REGISTRY) == ("files", "reports")
    assert ScopePolicy(default_servers=("rep*",)).selected(REGISTRY) == ("reports",)
    assert ScopePolicy(tags=("local",)).selected(REGISTRY) == ("files",)
    assert ScopePolicy(default_servers=("reports",), tags=("local",)).selected(REGISTRY) == ("files", "reports")
    assert ScopePolicy().selected(REGISTRY) == ()


def test_the_limit_is_the_default_unless_it_is_given() -> None:
    assert ScopePolicy(default_servers=("files",)).ceiling(REGISTRY) == ("files",)
    assert ScopePolicy(default_servers=("files",), allowed_servers=("*",)).ceiling(REGISTRY) == ("files", "reports")


def test_a_scope_with_a_profile_takes_its_selection_or_narrows_it() -> None:
    bundle = ResolvedProfile("review", servers=("files",), tags=("slow",))
    assert ScopePolicy(profile=bundle).selected(REGISTRY) == ("files", "reports")
    assert ScopePolicy(profile=bundle, default_servers=("files",)).selected(REGISTRY) == ("files",)
    assert ScopePolicy(profile=bundle, tags=("local",)).selected(REGISTRY) == ("files",)


def test_problems_of_a_scope_are_reported_with_a_suggestion() -> None:
    bundle = ResolvedProfile("review", servers=("files",), tags=("slo",))
    scope = ScopePolicy("work", ("file", "g*"), ("reports",), profile=bundle, tags=("locla",))
    found = {problem.message: problem.fatal for problem in check(scope, REGISTRY)}
    assert found == {
        "Scope 'work': default_servers has 'file', which allowed_servers does not allow.": True,
        "Scope 'work': there is no server 'file'. Did you mean 'files'?": False,
        "Scope 'work': no server has the tag 'locla'. Did you mean 'local'?": False,
        "Scope 'work': no server has the tag 'slo'. Did you mean 'slow'?": False,
        "Scope 'work': it selects no server, so its callers see no tools.": False,
    }


def test_a_good_scope_has_no_problems() -> None:
    assert check(ScopePolicy(default_servers=("files",), allowed_servers=("files", "reports")), REGISTRY) == ()
    assert check(ScopePolicy(tags=("local",)), REGISTRY) == ()
    assert check(ScopePolicy(enabled=False), REGISTRY) == ()


def test_an_unknown_name_without_similar_ones_gets_no_suggestion() -> None:
    problem, _ = check(ScopePolicy(default_servers=("zzz",)), REGISTRY)
    assert problem.message == "Scope 'default': there is no server 'zzz'."


def test_a_profile_unites_servers_and_tags_and_joins_constraints() -> None:
    allow, more = PatternSet.of(["read_*"]), PatternSet.of(["*_file"])
    profiles = {
        "base": Profile("base", servers=("files",), tags=("local",), tool_allowlist=allow, exclude_servers=("x",)),
        "extra": Profile("extra", servers=("reports",), tool_denylist=PatternSet.of(["drop_*"])),
        "both": Profile("both", ("base", "extra"), servers=("more",), tool_allowlist=more),
    }
    flat = resolve_profile(profiles, "both")
    assert flat.servers == ("files", "reports", "more")
    assert flat.tags == ("local",)
    assert flat.tool_allowlists == (allow, more)
    assert flat.tool_denylist == PatternSet.of(["drop_*"])
    assert not flat.keeps("x")
    assert flat.keeps("files")


def test_a_scope_narrows_its_profile() -> None:
    whole = resolve_profile({"p": Profile("p", servers=("*",))}, "p")
    assert whole.keeps("reports")
    narrow = whole.narrowed(Narrowing(("f*",), ("f*x",), ALL_TOOLS, PatternSet.of(["w*"])))
    assert [narrow.keeps(server) for server in ("files", "fix", "reports")] == [True, False, False]
    assert narrow.tool_allowlists == (ALL_TOOLS,)
    assert narrow.narrowed(Narrowing(tool_allowlist=ALL_TOOLS)).tool_allowlists == (ALL_TOOLS,)


@pytest.mark.parametrize(
    ("extends", "error_type", "message"),
    [
        ({"a": ("a",)}, "profile_cycle", "a -> a"),
        ({"a": ("b",), "b": ("c",), "c": ("b",)}, "profile_cycle", "b -> c -> b"),
        (
            {"a": ("bb",), "b": ()},
            "unknown_profile",
            "'bb', which profile 'a' extends, does not exist. Did you mean 'b'?",
        ),
        ({"x": ()}, "unknown_profile", "'a' does not exist."),
        ({"a": ("p0",), **{f"p{i}": (f"p{i + 1}",) for i in range(20)}}, "profile_too_deep", "more than 16 levels"),
    ],
)
def test_a_profile_that_cannot_be_resolved_is_an_error_with_the_reason(
    extends: dict[str, tuple[str, ...]], error_type: str, message: str
) -> None:
    profiles = {name: Profile(name, parents) for name, parents in extends.items()}
    with pytest.raises(ProfileError) as caught:
        resolve_profile(profiles, "a")
    assert caught.value.error_type == error_type
    assert message in caught.value.message


def test_a_request_is_read_from_query_headers_and_meta_alike() -> None:
    expected = SessionRequest(
        (("files", "rep*"),), (PatternSet.of(["read_*", "files:stat"]),), PatternSet.of(["read_secret"])
    )
    query = "servers=files,rep*&tools=read_*,files:stat,-read_secret&other=1"
    headers = [("x-taskgate-tools", "read_*, files:stat, -read_secret"), ("x-taskgate-servers", "files, rep*,")]
    meta = {"taskgate/servers": ["files", "rep*"], "taskgate/tools": "read_*,files:stat,-read_secret"}
    assert SessionRequest.from_query(query) == expected
    assert SessionRequest.from_pairs(headers) == expected
    assert SessionRequest.from_meta(meta) == expected
    assert SessionRequest.from_meta({}) == SessionRequest.from_query("") == SessionRequest()


def test_denials_alone_allow_the_rest_and_an_empty_list_allows_nothing() -> None:
    assert SessionRequest.parse(tools="-drop_*").tool_allowlists == ()
    assert SessionRequest.parse(tools="").tool_allowlists == (PatternSet(),)
    assert SessionRequest.parse(servers="").server_lists == ((),)


def test_two_requests_narrow_together() -> None:
    both = SessionRequest.parse("files,reports").narrowed(SessionRequest.parse("f*", "-x"))
    assert both.asks_for("files")
    assert not both.asks_for("reports")
    assert both.named_servers() == ("files", "reports")
    assert SessionRequest().asks_for("anything")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: SessionRequest.parse(["a"] * (MAX_ENTRIES + 1)), "more than 200 entries"),
        (lambda: SessionRequest.parse("a" * (MAX_TEXT + 1)), "longer than 8192"),
        (lambda: SessionRequest.parse(tools=[1]), "only hold strings"),
        (lambda: SessionRequest.from_query("servers=" + "a" * MAX_TEXT), "longer than 8192"),
        (lambda: SessionRequest.from_query("servers=%ff"), "cannot be read"),
        (lambda: SessionRequest.from_query("&".join(f"a{i}=1" for i in range(100))), "cannot be read"),
        (lambda: SessionRequest.from_meta({"taskgate/servers": 5}), "must be a comma list"),
    ],
)
def test_an_unreadable_request_is_refused(read: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read()  # type: ignore[operator]


def test_bad_globs_in_a_request_are_refused() -> None:
    with pytest.raises(PatternError):
        SessionRequest.parse(servers="[a")
    with pytest.raises(PatternError):
        SessionRequest.parse(tools="-")


def test_helper_tools_may_be_called_unless_a_direct_scope_has_none() -> None:
    assert ScopePolicy().has_helpers
    assert not ScopePolicy(helper_tools=HelperTools.NEVER).has_helpers
    assert ScopePolicy(mode=ScopeMode.FACADE, helper_tools=HelperTools.NEVER).has_helpers
