"""Names that look like denied ones, and different spellings of one URI: both are evaluated in their normal form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.harness.cpu_time import PAUSE_S, least_cpu

from taskgate.core.globs import Glob
from taskgate.core.governance.decision import Decision, Denied, Forward, NeedsApproval, NeedsPolicy, Note
from taskgate.core.governance.pipeline import EnforcementProfile, Gates, decide, decide_listed, decide_unlisted
from taskgate.core.governance.rules import compile_rules
from taskgate.core.governance.visibility import ExposeMode, Layers, expose
from taskgate.core.governance.workflow import Workflow
from taskgate.core.patterns import Pattern, PatternKind, PatternSet, checked_skeleton
from taskgate.core.resource_uri import MAX_URI, is_ambiguous, normal_form, normal_glob
from taskgate.core.scoping.registry import ApprovalDemand, ApprovalPolicy, Registry, RegistryRecord
from taskgate.core.scoping.scope import ScopePolicy
from taskgate.core.scoping.subset import compose
from taskgate.core.settings.governance import Action, Rule
from taskgate.core.text.lookalikes import MAX_NAME, skeleton

TOOL, RESOURCE, PROMPT = PatternKind.TOOL, PatternKind.RESOURCE, PatternKind.PROMPT
LIKE_DROP_X = [
    "DROP_X",
    " drop_x",
    "drop_x\t",
    "drop _x",
    "drop＿x",
    "ＤＲＯＰ_ｘ",
    "drоp_x",  # a Cyrillic o
    "dгoр_х",  # three Cyrillic letters
    "DRΟΡ_Χ",  # Greek capitals
    "drop_x\u200b",
    "dr\u00f6p_x",
    "dro\u0308p_x",
    "drop‿x",
    "d\u00adrop_x",
    "\u202edrop_x",
    "ⅾrop_x",
    "𝐝𝐫𝐨𝐩_𝐱",
    "drop_x\u3164",
    "drop\u2800_x",
    "ᎠᎡꓳᏢ_x",  # Cherokee and Lisu
    "dꭇⲟp_ⲭ",  # Coptic, and a rare Latin letter
]
RULES = [
    Rule("drop_*", Action.DENY),
    Rule("Delete_*", Action.APPROVE, approval="ops"),
    Rule("resource:file:///secret/*", Action.DENY),
    Rule("resource:https://intern.example/*", Action.DENY),
]


def gates(**changes: object) -> Gates:
    return replace(Gates("r1", compile_rules(RULES)), **changes)


@pytest.mark.parametrize("name", LIKE_DROP_X)
def test_an_unlisted_name_that_looks_like_a_denied_one_is_denied(name: str) -> None:
    assert skeleton(name) == "drop_x"
    assert isinstance(decide_unlisted(gates(), TOOL, "files", name), Denied)


def test_a_name_of_its_own_is_not_taken_for_another() -> None:
    for name in ("drop-x", "dropx", "drop_y", "undrop_x", "read"):
        assert skeleton(name) != "drop_x"
    assert isinstance(decide_unlisted(gates(), TOOL, "files", "drop-x"), Forward)


def test_an_unlisted_name_is_held_like_the_one_it_looks_like() -> None:
    decision = decide_unlisted(gates(), TOOL, "files", "delete_all")
    assert isinstance(decision, NeedsApproval)
    assert decision.workflow == "ops"
    noted = decide_unlisted(gates(profile=EnforcementProfile.DEVELOPMENT), TOOL, "files", "DROP_X")
    assert isinstance(noted, Forward)
    assert noted.note is Note.WOULD_DENY


def test_what_a_rule_says_of_the_exact_name_is_never_loosened() -> None:
    loose = gates(rules=compile_rules([Rule("DROP_A", Action.FORWARD), Rule("drop_*", Action.DENY)]))
    assert isinstance(decide_unlisted(loose, TOOL, "files", "drop_a"), Denied)
    assert isinstance(decide_unlisted(loose, TOOL, "files", "DROP_A"), Forward)


def test_quarantined_and_withheld_names_cause_no_lookalike_denials() -> None:
    held = {("files", "charge"), ("other", "read")}
    assert isinstance(decide_unlisted(gates(), TOOL, "files", "charge", quarantined=held), Denied)
    assert isinstance(decide_unlisted(gates(), TOOL, "files", "Charge", quarantined=held), Denied)
    assert isinstance(decide_unlisted(gates(), TOOL, "files", "read", quarantined=held), Forward)
    withheld = {checked_skeleton("Secret_Prompt", PROMPT)}
    assert isinstance(decide_unlisted(gates(), PROMPT, "files", "secret_prompt", withheld=withheld), Denied)


def test_every_denying_list_covers_lookalikes() -> None:
    exposed = Layers({"files": (expose(ExposeMode.BLOCKLIST, ["wipe"]),)})
    assert isinstance(decide_unlisted(gates(visibility=exposed), TOOL, "files", "WIPE"), Denied)
    record = RegistryRecord("files", denied_tools=PatternSet.of(["wipe"]))
    subset = compose(Registry.build([record]), ScopePolicy("default", default_servers=("*",)))
    assert subset.admits("files", "WIPE")
    assert subset.denies_lookalike("files", "WIPE", TOOL) is not None
    requested_values = {"files": ApprovalPolicy(per_tool=((PatternSet.of(["wipe"]), ApprovalDemand.DENY),))}
    assert isinstance(decide_unlisted(gates(records=requested_values), TOOL, "files", "WIPE"), Denied)
    assert isinstance(decide_unlisted(gates(records=requested_values), TOOL, "files", "wash"), Forward)


def test_listed_name_gets_the_strictest_decision_of_those_that_look_like_it() -> None:
    def decided(rules: list[Rule], name: str, **more: object) -> Decision:
        made = gates(rules=compile_rules(rules), **more)
        other = {"read": "READ", "READ": "read"}[name]
        return decide_listed(made, TOOL, "files", name, (other,), quarantined={("held", "read")})

    for strict in ("read", "READ"):
        for name in ("read", "READ"):
            assert isinstance(decided([Rule(strict, Action.DENY)], name), Denied)
            held = decided([Rule(strict, Action.APPROVE, approval="ops")], name)
            assert isinstance(held, NeedsApproval)
            assert held.workflow == "ops"
            asked = decided([Rule(strict, Action.POLICY, policy_id="p")], name)
            assert isinstance(asked, NeedsPolicy)
            assert asked.at_least_approve is None
    assert isinstance(decided([Rule("other", Action.DENY)], "read"), Forward)
    assert isinstance(decide_listed(gates(), TOOL, "files", "read", ()), Forward)


def test_lookalikes_with_several_workflows_and_policies_need_all_of_them() -> None:
    workflows = {"one": Workflow("one"), "two": Workflow("two", approvals_needed=2)}
    rules = [Rule("read", Action.APPROVE, approval="one"), Rule("READ", Action.APPROVE, approval="two")]
    for name, other in (("read", "READ"), ("READ", "read")):
        found = decide_listed(gates(rules=compile_rules(rules), workflows=workflows), TOOL, "files", name, (other,))
        assert isinstance(found, NeedsApproval)
        assert found.workflow == "two"
    rules = [Rule("read", Action.POLICY, policy_id="p"), Rule("READ", Action.APPROVE, approval="two")]
    for name, other in (("read", "READ"), ("READ", "read")):
        asked = decide_listed(gates(rules=compile_rules(rules), workflows=workflows), TOOL, "files", name, (other,))
        assert isinstance(asked, NeedsPolicy)
        assert asked.at_least_approve == "two"


def test_listed_name_is_hidden_with_what_it_looks_like_but_an_allow_list_names_exactly() -> None:
    blocked = gates(visibility=Layers({"files": (expose(ExposeMode.BLOCKLIST, ["READ"]),)}))
    allowed = gates(visibility=Layers({"files": (expose(ExposeMode.ALLOWLIST, ["read"]),)}))
    assert isinstance(decide_listed(blocked, TOOL, "files", "read", ("READ",)), Denied)
    assert isinstance(decide_listed(allowed, TOOL, "files", "read", ("READ",)), Forward)
    assert isinstance(decide_listed(allowed, TOOL, "files", "READ", ("read",)), Denied)
    held = {("files", "READ")}
    assert isinstance(decide_listed(gates(), TOOL, "files", "read", ("READ",), quarantined=held), Denied)
    assert isinstance(decide_listed(gates(), TOOL, "files", "read", (), quarantined=held), Forward)


@given(st.text(max_size=40))
def test_a_skeleton_is_idempotent_and_ignores_case_and_spaces(name: str) -> None:
    once = skeleton(name)
    assert skeleton(once) == once
    assert skeleton(f" {name}\u200b ") == once


SPELLINGS = [
    "file:///secret/key",
    "FILE:///secret/key",
    "file:/secret/key",
    "file://localhost/secret/key",
    "file://LocalHost./secret/key",
    "file://127.0.0.1/secret/key",
    "file:///secret//key",
    "file:///secret/./key",
    "file:///public/../secret/key",
    "file:///../../secret/key",
    "file:///%73ecret/key",
    "file:///%2573ecret/key",
    "file:///secret%2Fkey",
    "file:///public/..%2Fsecret/key",
    "file:///public/%2e%2e/secret/key",
    "file:///secret\\key",
    "file:\\\\\\secret\\key",
    " file:///secret/key\n",
    "file:///sec\tret/key",
    "file:secret/key",
    "file://localhost:80/secret/key",
    "file://somebody@localhost/secret/key",
    "file://0x7f.1/secret/key",
    "file://[::ffff:127.0.0.1]/secret/key",
]


@pytest.mark.parametrize("uri", SPELLINGS)
def test_every_spelling_of_a_denied_resource_is_denied(uri: str) -> None:
    assert normal_form(uri) == "file:///secret/key"
    assert isinstance(decide(gates(), RESOURCE, "files", uri), Denied)
    assert PatternSet.of(["resource:file:///secret/*"]).for_server("files", RESOURCE).among([uri]) == [uri]


@pytest.mark.parametrize(
    "uri",
    [
        "https://intern.example/a",
        "HTTPS://INTERN.example:443/a",
        "https://intern.example./a",
        "https://intern%2Eexample/a",
        "https://intern.example:/a",
        "https://intern.example:0443/a",
        "https://somebody:word@intern.example/a",
        "https://somebody%40intern.example/a",
        "https://intern.example",
    ],
)
def test_hosts_and_default_ports_have_one_form(uri: str) -> None:
    assert isinstance(decide(gates(), RESOURCE, "web", uri), Denied)


@pytest.mark.parametrize("uri", ["file:///public/key", "file://server/public/key", "https://intern.example:8443/a"])
def test_different_resources_have_different_forms(uri: str) -> None:
    assert isinstance(decide_unlisted(gates(), RESOURCE, "files", uri), Forward)


@pytest.mark.parametrize(
    ("host", "form"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0x7F.1", "127.0.0.1"),
        ("0177.0.0.01", "127.0.0.1"),
        ("127.0.1", "127.0.0.1"),
        ("127.0x.1", "127.0.0.1"),
        ("[::FFFF:7f00:1]", "127.0.0.1"),
        ("[::ffff:127.0.0.1]:080", "127.0.0.1"),
        ("[0:0::1]", "[::1]"),
        ("[::1]:8080", "[::1]:8080"),
        ("[nothing]", "[nothing]"),
        ("089.1", "089.1"),
        ("1.256.1", "1.256.1"),
        ("4294967296", "4294967296"),
        ("1.2.3.4.5", "1.2.3.4.5"),
        ("1.2.3.example", "1.2.3.example"),
        ("host:08080", "host:8080"),
        ("host:word", "host:word"),
        (":80", ":80"),
    ],
)
def test_an_address_has_one_normal_form(host: str, form: str) -> None:
    assert normal_form(f"http://{host}/a") == f"http://{form}/a"
    assert normal_form(f"http://{form}/a") == f"http://{form}/a"


def test_a_file_of_another_host_is_checked_by_its_path_too() -> None:
    """Many programs use only the path of a file's URI."""
    only = gates(rules=compile_rules([Rule("resource:file:///secret/*", Action.DENY)]))
    assert isinstance(decide_unlisted(only, RESOURCE, "files", "file://server/secret/key"), Denied)
    assert isinstance(decide_unlisted(only, RESOURCE, "files", "file://server/Secret/../secret/key"), Denied)
    assert isinstance(decide_unlisted(only, RESOURCE, "files", "file://server/public/key"), Forward)
    assert isinstance(decide_unlisted(only, RESOURCE, "files", "file://server"), Forward)
    assert isinstance(decide(only, RESOURCE, "files", "file://server/secret/key"), Forward)
    withheld = {checked_skeleton("file:///kept/a", RESOURCE)}
    assert isinstance(decide_unlisted(only, RESOURCE, "files", "file://server/kept/a", withheld=withheld), Denied)


@pytest.mark.parametrize("uri", ["http:/intern.example/a", "http:intern.example/a", "HTTPS:///intern.example/a"])
def test_a_web_address_with_a_misplaced_host_is_refused(uri: str) -> None:
    assert is_ambiguous(uri)
    assert isinstance(decide_unlisted(gates(), RESOURCE, "web", uri), Denied)


def test_unlisted_resources_that_look_like_denied_ones_are_denied() -> None:
    assert isinstance(decide_unlisted(gates(), RESOURCE, "files", "file:///Secret/key"), Denied)
    assert isinstance(decide_unlisted(gates(), RESOURCE, "files", "file:///ѕecret/key"), Denied)


def test_dot_segments_do_not_escape_an_allow_list() -> None:
    only = PatternSet.of(["resource:file:///public/*"])
    for uri in ("file:///public/../secret", "file:///public/%2e%2e/secret", "file:///public/x%3F/../../secret"):
        assert not only.matches("files", uri, RESOURCE)
    assert only.matches("files", "file:///public/a%20b", RESOURCE)


@pytest.mark.parametrize(
    "uri", ["file:///public/x?/../../secret", "file:///a#/../b", f"file:///{'a' * MAX_URI}", f"file:///%{'25' * 20}41"]
)
def test_an_ambiguous_uri_is_refused(uri: str) -> None:
    assert is_ambiguous(uri)
    assert isinstance(decide_unlisted(gates(), RESOURCE, "files", uri), Denied)


def test_queries_of_web_addresses_may_hold_dots() -> None:
    assert not is_ambiguous("https://host.example/find?path=/../x")
    assert not is_ambiguous("file:///a%2520b")


def test_a_path_without_an_authority_is_resolved_too() -> None:
    assert normal_form("NOTE:a/../b%2Fc?q") == "note:b/c?q"


@given(
    st.one_of(
        st.text(max_size=60), st.from_regex(r"[a-zA-Z]{1,5}:/{0,3}[a-zA-Z0-9./\\%@:?#\[\]]{0,40}", fullmatch=True)
    )
)
def test_normalization_is_idempotent(uri: str) -> None:
    if not is_ambiguous(uri):
        assert normal_form(normal_form(uri)) == normal_form(uri)


@pytest.mark.parametrize(
    ("glob", "normal"),
    [
        ("file:///home/.*", "file:///home/.*"),
        ("FILE://localhost/a%20b/*", "file:///a b/*"),
        ("file:/a/*", "file:///a/*"),
        ("https://*", "https://*"),
        ("HTTPS://Ex*", "https://ex*"),
        ("memo:Abc*", "memo:Abc*"),
        ("file:///a/%2A*", "file:///a/[*]*"),
        ("file:///A/b", "file:///A/b"),
        ("*", "*"),
    ],
)
def test_globs_over_uris_are_brought_into_the_same_form(glob: str, normal: str) -> None:
    assert normal_glob(glob) == normal


@given(st.text(alphabet="abAB%2/.*-", min_size=1, max_size=12))
def test_a_literal_uri_pattern_covers_itself(tail: str) -> None:
    literal = "".join(f"[{c}]" if c in "*?[" else c for c in tail).strip() or "x"
    uri = f"file:///x/{tail}"
    if not is_ambiguous(uri) and "*" not in tail:
        assert Pattern.compile(f"resource:file:///x/{literal}").matches("s", uri, RESOURCE)


def test_lookalike_checks_are_cheap_for_long_names() -> None:
    for name in ("a" + "\u0301\u0327" * 200_000, "x" * 2_000_000, "\u0130" * 200_000, "%25" * 500_000, "/.." * 500_000):
        assert len(skeleton(name)) <= 3 * MAX_NAME
        assert least_cpu(lambda n=name: skeleton(n)) < PAUSE_S  # type: ignore[misc]
        assert least_cpu(lambda n=name: normal_form(f"file:///{n}")) < PAUSE_S  # type: ignore[misc]
        assert least_cpu(lambda n=name: Glob.compile("drop_*").lookalike.matches(skeleton(n))) < PAUSE_S  # type: ignore[misc]


OF_NAMES = [
    Rule("*", Action.DENY, when={"tool": "drop_*"}),
    Rule("*", Action.DENY, when={"tool": ["Erase_a", {"not": "*"}]}),
    Rule("resource:*", Action.DENY, when={"tool": "FILE:///secret/*"}),
    Rule("resource:*", Action.DENY, when={"tool": {"equals": "file:///one%20file"}}),
]


@pytest.mark.parametrize("name", [*LIKE_DROP_X, "erase_A"])
def test_a_condition_on_the_name_is_met_by_an_unlisted_name_that_looks_like_one(name: str) -> None:
    made = gates(rules=compile_rules(OF_NAMES))
    assert isinstance(decide_unlisted(made, TOOL, "files", name), Denied)
    assert isinstance(decide_unlisted(made, TOOL, "files", "drop-x"), Forward)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///secret/a",
        "FILE:///secret/a",
        "file:///%73ecret/a",
        "file:///open/../secret/a",
        "file://localhost/secret/a",
        "file:///SECRET/a",
        "file:///one file",
        "file:///one%20file",
    ],
)
def test_a_condition_on_a_uri_is_met_by_every_spelling_of_it(uri: str) -> None:
    made = gates(rules=compile_rules(OF_NAMES))
    assert isinstance(decide_unlisted(made, RESOURCE, "files", uri), Denied)
    assert isinstance(decide_unlisted(made, RESOURCE, "files", "file:///open/a"), Forward)
