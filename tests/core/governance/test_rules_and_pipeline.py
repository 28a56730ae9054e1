"""Rules, visibility and the decision function: truth tables, and the property that no stage widens access."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.harness.raised import raises_error

from taskgate.core.globs import PatternError
from taskgate.core.governance import answers as answers_module
from taskgate.core.governance import pipeline
from taskgate.core.governance.decision import (
    Decision,
    Denied,
    Determined,
    Forward,
    Gate,
    NeedsApproval,
    NeedsPolicy,
    Note,
    Residue,
    Strictness,
    action_of,
    describe,
    strictness,
)
from taskgate.core.governance.pipeline import (
    EnforcementProfile,
    Gates,
    PolicyAnswer,
    PolicyVerdict,
    UnknownWorkflow,
    check_workflows,
    conclude,
    decide,
    listed,
    open_gates,
    workflow_named,
)
from taskgate.core.governance.rules import BadRule, compile_rules
from taskgate.core.governance.visibility import ExposeMode, Layers, VisibilityLists, expose
from taskgate.core.governance.workflow import Workflow
from taskgate.core.patterns import PatternKind, PatternSet
from taskgate.core.scoping.registry import ApprovalDemand, ApprovalPolicy
from taskgate.core.settings.governance import Action, Rule

TOOL, RESOURCE, PROMPT = PatternKind.TOOL, PatternKind.RESOURCE, PatternKind.PROMPT
EXAMPLE = [
    Rule("drop_*", Action.DENY),
    Rule("delete_*", Action.APPROVE, approval="ops", reason="deletes for good"),
    Rule("pay_*", Action.POLICY, server="reports", policy_id="payments", approval="money"),
    Rule("resource:file:///secret/*", Action.DENY),
    Rule("prompt:draft_*", Action.APPROVE),
]
WORKFLOWS = {"ops": Workflow("ops"), "money": Workflow("money", approvals_needed=2)}


def gates(**changes: object) -> Gates:
    made = Gates("r1", compile_rules(EXAMPLE, force_required=["export_all"]), workflows=WORKFLOWS)
    return replace(made, **changes)


def test_decision_of_one_rule_is_made_for_each_server_whose_record_requires_more() -> None:
    wiping = ((PatternSet.of(["wipe"]), ApprovalDemand.DENY),)
    required = ApprovalPolicy(ApprovalDemand.APPROVE, wiping, "ops")
    denied = ApprovalPolicy(ApprovalDemand.DENY)
    made = replace(gates(), records={"a": required, "b": replace(required, workflow="money"), "c": denied})
    found = [decide(made, TOOL, server, "read") for server in ("a", "b", "c", "d", "e")]
    assert found == [
        NeedsApproval("ops", "servers.a.approval_policy"),
        NeedsApproval("money", "servers.b.approval_policy"),
        Denied(Gate.RULES, "denied by the server's record", "policy_denied", "servers.c.approval_policy"),
        Forward("defaults"),
        Forward("defaults"),
    ]
    assert found[3] is found[4]
    assert isinstance(decide(made, TOOL, "a", "wipe"), Denied)


@pytest.mark.parametrize(
    ("kind", "server", "name", "action"),
    [
        (TOOL, "files", "read_file", Action.FORWARD),
        (TOOL, "files", "drop_table", Action.DENY),
        (TOOL, "files", "Drop_table", Action.FORWARD),
        (TOOL, "files", "delete_file", Action.APPROVE),
        (TOOL, "reports", "pay_now", Action.POLICY),
        (TOOL, "files", "pay_now", Action.FORWARD),
        (RESOURCE, "files", "file:///secret/key", Action.DENY),
        (RESOURCE, "files", "file:///open/key", Action.FORWARD),
        (RESOURCE, "files", "drop_table", Action.FORWARD),
        (PROMPT, "files", "draft_letter", Action.APPROVE),
        (PROMPT, "files", "letter", Action.FORWARD),
    ],
)
def test_the_first_rule_that_covers_a_name_decides(kind: PatternKind, server: str, name: str, action: Action) -> None:
    made = gates()
    first = decide(made, kind, server, name)
    assert action_of(first) is action
    assert decide(made, kind, server, name) is first


def by_name(made: Gates, server: str, name: str) -> Determined:
    """The decision about a tool; no rule of these tests has conditions."""
    found = decide(made, TOOL, server, name)
    assert not isinstance(found, Residue)
    return found


def test_order_decides_between_rules_that_both_match() -> None:
    one = compile_rules([Rule("a*", Action.DENY), Rule("ab", Action.FORWARD)])
    other = compile_rules([Rule("ab", Action.FORWARD), Rule("a*", Action.DENY)])
    assert one.match(TOOL, "s", "ab")[-1].action is Action.DENY
    assert other.match(TOOL, "s", "ab")[-1].action is Action.FORWARD


def test_a_decision_carries_what_the_log_and_the_approver_need() -> None:
    made = gates()
    assert decide(made, TOOL, "files", "delete_x") == NeedsApproval("ops", "rules[1] delete_*", "deletes for good")
    assert decide(made, TOOL, "reports", "pay_x") == NeedsPolicy("payments", "money", "rules[2] pay_*")
    denied = decide(made, TOOL, "files", "drop_x")
    assert denied == Denied(Gate.RULES, "denied by rule", "policy_denied", "rules[0] drop_*")
    assert not listed(denied)
    assert listed(decide(made, TOOL, "files", "read"))


def test_approve_without_a_workflow_uses_the_default_one() -> None:
    made = Gates("r", compile_rules([Rule("x", Action.APPROVE)]))
    assert decide(made, TOOL, "s", "x") == NeedsApproval("default", "rules[0] x")
    assert workflow_named(made, "default") == Workflow("default")
    assert workflow_named(gates(), "ops") is WORKFLOWS["ops"]


@pytest.mark.parametrize("default", list(Action))
def test_the_defaults_decide_where_no_rule_matches(default: Action) -> None:
    made = Gates("r", compile_rules([], default=default))
    assert {action_of(decide(made, kind, "s", "anything")) for kind in PatternKind} == {default}


def test_without_rules_everything_is_forwarded() -> None:
    assert decide(open_gates(), TOOL, "s", "x") == Forward("defaults")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Rule("[a", Action.DENY), r"governance.rules\[0\]: .*never closed"),
        (Rule("", Action.DENY), r"governance.rules\[0\]: .*empty"),
    ],
)
def test_an_invalid_rule_is_an_error_with_its_place(rule: Rule, message: str) -> None:
    with pytest.raises(BadRule, match=message):
        compile_rules([rule])


def test_bad_defaults_and_a_bad_force_required_are_errors_too() -> None:
    with pytest.raises(BadRule, match=r"governance\.defaults"):
        compile_rules([], default_policy_id="p")
    with pytest.raises(BadRule, match=r"governance\.force_required"):
        compile_rules([], force_required=["[x"])


def test_force_required_is_a_glob_on_the_own_name() -> None:
    made = compile_rules([], force_required=["export_*", "files:copy"])
    assert [made.forced("files", "export_all"), made.forced("files", "copy"), made.forced("other", "copy")] == [
        True,
        True,
        False,
    ]
    assert made.forced("other", "copy") is False
    assert compile_rules([]).forced("files", "export_all") is False


def test_the_cache_of_decisions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "MAX_REMEMBERED", 3)
    monkeypatch.setattr(pipeline, "MAX_DISTINCT", 1)
    rules = compile_rules([Rule("other_*", Action.DENY)], force_required=["copy"])
    made = replace(gates(), rules=rules)
    for number in range(10):
        assert decide(made, TOOL, "files", f"drop_{number}") == decide(made, TOOL, "files", f"drop_{number}")
        assert made.rules.forced("files", f"drop_{number}") is False
        assert decide(made, TOOL, f"server{number}", "read") == Forward("defaults")
        assert action_of(decide(made, TOOL, "files", f"other_{number}")) is Action.DENY
    assert len(made._answers) <= 3
    assert len(made._distinct) == 1
    assert 0 < len(made.rules._answers) <= 3
    assert len(made.rules._forced_answers) <= 3


@pytest.mark.parametrize(
    ("mode", "shown", "hidden"),
    [
        (ExposeMode.ALL, ["read_a", "write_a"], []),
        (ExposeMode.ALLOWLIST, ["read_a"], ["write_a"]),
        (ExposeMode.BLOCKLIST, ["write_a"], ["read_a"]),
    ],
)
def test_expose_selects_the_tools_of_a_server(mode: ExposeMode, shown: list[str], hidden: list[str]) -> None:
    made = gates(visibility=Layers({"files": (expose(mode, ["read_*"], server="files"),)}))
    for name in shown:
        assert listed(decide(made, TOOL, "files", name))
    for name in hidden:
        decision = decide(made, TOOL, "files", name)
        assert isinstance(decision, Denied)
        assert (decision.gate, decision.error_type) == (Gate.VISIBILITY, "unknown_tool")
    assert listed(decide(made, RESOURCE, "files", "file:///x"))
    assert listed(decide(made, TOOL, "other", "write_a"))


def test_a_list_restricts_resources_only_if_it_names_some() -> None:
    layer = VisibilityLists(allow=PatternSet.of(["read_*", "resource:file:///open/*"]))
    assert layer.hides(RESOURCE, "s", "file:///open/a") is None
    assert layer.hides(RESOURCE, "s", "file:///secret") == "not on the allow list"
    assert layer.hides(PROMPT, "s", "anything") is None
    assert VisibilityLists(allow=PatternSet()).hides(PROMPT, "s", "anything") == "not on the allow list"


def test_a_bad_pattern_in_expose_is_an_error_in_every_mode() -> None:
    for mode in ExposeMode:
        with pytest.raises(PatternError):
            expose(mode, ["[x"], server="files")


def test_an_expose_list_may_not_name_another_server() -> None:
    assert expose(ExposeMode.ALLOWLIST, ["files:read_*"], server="files").hides(TOOL, "files", "read_a") is None
    with raises_error("bad_pattern", "'mail:read_*'", "'files'"):
        expose(ExposeMode.ALLOWLIST, ["mail:read_*"], server="files")


def test_layers_only_restrict() -> None:
    wide = Layers({"s": (VisibilityLists(deny=PatternSet.of(["a"])),)})
    narrow = Layers({"s": (*wide.per_server["s"], VisibilityLists(deny=PatternSet.of(["b"])))})
    assert [wide.hides(TOOL, "s", name) is None for name in "abc"] == [False, True, True]
    assert [narrow.hides(TOOL, "s", name) is None for name in "abc"] == [False, False, True]


def test_a_quarantined_tool_is_hidden_but_still_known() -> None:
    made = gates()
    before = decide(made, TOOL, "files", "read")
    held = decide(made, TOOL, "files", "read", quarantined={("files", "read")})
    assert isinstance(held, Denied)
    assert held.error_type == "unknown_tool"
    assert decide(made, TOOL, "files", "read", quarantined={("files", "other")}) is before
    assert decide(made, PROMPT, "files", "read", quarantined={("files", "read")}) == Forward("defaults")


RULE_ACTIONS = {"read": Action.FORWARD, "delete_x": Action.APPROVE, "drop_x": Action.DENY, "pay_x": Action.POLICY}


@pytest.mark.parametrize("name", list(RULE_ACTIONS))
@pytest.mark.parametrize("wish", list(ApprovalDemand))
def test_the_strictest_of_rule_and_record_wins(name: str, wish: ApprovalDemand) -> None:
    plain = strictness(by_name(gates(), "reports", name))
    tightened = by_name(gates(records={"reports": ApprovalPolicy(wish)}), "reports", name)
    floor = {
        ApprovalDemand.FORWARD: Strictness.FORWARD,
        ApprovalDemand.APPROVE: Strictness.APPROVE,
        ApprovalDemand.DENY: Strictness.DENY,
    }[wish]
    assert strictness(tightened) == max(plain, floor)


def test_a_record_decides_about_tools_by_pattern_and_about_resources_by_its_default() -> None:
    requested_values = ApprovalPolicy(
        ApprovalDemand.FORWARD, ((PatternSet.of(["write_*"]), ApprovalDemand.APPROVE),), "ops"
    )
    made = gates(records={"files": requested_values})
    assert decide(made, TOOL, "files", "write_x") == NeedsApproval("ops", "servers.files.approval_policy")
    assert decide(made, TOOL, "files", "read_x") == Forward("defaults")
    assert decide(made, RESOURCE, "files", "write_x") == Forward("defaults")


ASKED = NeedsPolicy("payments", "money", "rules[2] pay_*")


@pytest.mark.parametrize(
    ("asked", "answer", "expected"),
    [
        (ASKED, PolicyAnswer(PolicyVerdict.FORWARD, "p"), Forward(ASKED.rule, reason="p")),
        (ASKED, PolicyAnswer(PolicyVerdict.APPROVE, "p"), NeedsApproval("money", ASKED.rule)),
        (ASKED, PolicyAnswer(PolicyVerdict.APPROVE, "p", ("ops",)), NeedsApproval("ops", ASKED.rule)),
        (ASKED, PolicyAnswer(PolicyVerdict.APPROVE, "p", ("ops", "money")), NeedsApproval("money", ASKED.rule)),
        (
            ASKED,
            PolicyAnswer(PolicyVerdict.APPROVE, "p", ("nobody",)),
            Denied(Gate.POLICY, "the policy picked an unknown workflow 'nobody'", "policy_denied", ASKED.rule),
        ),
        (ASKED, PolicyAnswer(PolicyVerdict.REJECT, "no"), Denied(Gate.POLICY, "no", "policy_denied", ASKED.rule)),
        (NeedsPolicy("", None, "r"), PolicyAnswer(PolicyVerdict.APPROVE, "p"), NeedsApproval("default", "r")),
        (
            NeedsPolicy("", "ops", "r", at_least_approve="money"),
            PolicyAnswer(PolicyVerdict.FORWARD, "p"),
            NeedsApproval("money", "r"),
        ),
        (
            NeedsPolicy("", "ops", "r", at_least_approve="money"),
            PolicyAnswer(PolicyVerdict.APPROVE, "p"),
            NeedsApproval("money+ops", "r"),
        ),
    ],
)
def test_the_answer_of_the_policy_is_final(asked: NeedsPolicy, answer: PolicyAnswer, expected: object) -> None:
    assert conclude(gates(), asked, answer) == expected


def test_development_forwards_and_reports_the_production_decision() -> None:
    made = gates(
        profile=EnforcementProfile.DEVELOPMENT,
        visibility=Layers({"files": (expose(ExposeMode.BLOCKLIST, ["hid"], server="files"),)}),
    )
    assert decide(made, TOOL, "files", "drop_x") == Forward("rules[0] drop_*", Note.WOULD_DENY, "denied by rule")
    assert decide(made, TOOL, "files", "delete_x") == Forward("rules[1] delete_*", Note.WOULD_HOLD, "workflow ops")
    assert decide(made, TOOL, "files", "read_x") == Forward("defaults")
    assert isinstance(decide(made, TOOL, "files", "hid"), Denied)
    for answer, note in (
        (PolicyAnswer(PolicyVerdict.REJECT, "no"), Note.WOULD_DENY),
        (PolicyAnswer(PolicyVerdict.APPROVE, "p"), Note.WOULD_HOLD),
    ):
        concluded = conclude(made, ASKED, answer)
        assert isinstance(concluded, Forward)
        assert concluded.note is note
    assert conclude(made, ASKED, PolicyAnswer(PolicyVerdict.FORWARD, "p")) == Forward(ASKED.rule, reason="p")


@pytest.mark.parametrize(
    ("decision", "line"),
    [
        (Forward("defaults"), "forward (defaults)"),
        (Forward("r", Note.WOULD_DENY, "denied by rule"), "forward, WOULD_DENY: denied by rule (r)"),
        (NeedsApproval("ops", "r"), "hold for the approval workflow ops (r)"),
        (NeedsPolicy("payments", None, "r"), "evaluate the policy as payments (r)"),
        (NeedsPolicy("", None, "r"), "evaluate the policy (r)"),
        (NeedsPolicy("", None, "r", "ops"), "evaluate the policy, and hold at least for the approval workflow ops (r)"),
        (Denied(Gate.RULES, "denied by rule", "policy_denied", "r"), "deny at rules: denied by rule (r)"),
        (Denied(Gate.VISIBILITY, "on a deny list", "unknown_tool"), "deny at visibility: on a deny list"),
    ],
)
def test_a_decision_is_described_in_one_line(decision: Decision, line: str) -> None:
    assert describe(decision) == line


def test_an_unknown_workflow_is_found_before_serving() -> None:
    check_workflows(gates(), {"money": "payments.cedar:3"})
    check_workflows(Gates("r", compile_rules([Rule("x", Action.APPROVE)])))
    with pytest.raises(UnknownWorkflow, match=r"rules\[0\] x: .*'nope'"):
        check_workflows(Gates("r", compile_rules([Rule("x", Action.APPROVE, approval="nope")])))
    with pytest.raises(UnknownWorkflow, match=r"payments.cedar:3.*known: money, ops"):
        check_workflows(gates(), {"nope": "payments.cedar:3"})
    with pytest.raises(UnknownWorkflow, match=r"servers.files.approval_policy"):
        check_workflows(gates(records={"files": ApprovalPolicy(ApprovalDemand.APPROVE, workflow="nope")}))
    check_workflows(gates(records={"files": ApprovalPolicy(ApprovalDemand.APPROVE)}))


names = st.sampled_from(["read", "drop_x", "delete_x", "pay_x", "hidden"])
patterns = st.lists(st.sampled_from(["*", "drop_*", "p*", "read", "h?dden", "[dp]*"]), max_size=3)
made_rules = st.lists(
    st.builds(Rule, st.sampled_from(["*", "drop_*", "pay_*", "r*"]), st.sampled_from(list(Action))), max_size=4
)
requested_values = st.builds(ApprovalPolicy, st.sampled_from(list(ApprovalDemand)))
answers = st.builds(PolicyAnswer, st.sampled_from(list(PolicyVerdict)), st.just("because"))


@given(made_rules, requested_values, patterns, patterns, names)
def test_a_stage_never_widens(
    written: list[Rule], wish: ApprovalPolicy, allow: list[str], deny: list[str], name: str
) -> None:
    plain = Gates("r", compile_rules(written))
    recorded = Gates("r", plain.rules, records={"s": wish})
    hidden = Gates(
        "r", plain.rules, Layers({"s": (VisibilityLists(PatternSet.of(allow), PatternSet.of(deny)),)}), {"s": wish}
    )
    steps = [strictness(by_name(each, "s", name)) for each in (plain, recorded, hidden)]
    assert steps == sorted(steps)


@given(made_rules, requested_values, answers, names)
def test_a_policy_never_weakens_a_required_approval(
    written: list[Rule], wish: ApprovalPolicy, answer: PolicyAnswer, name: str
) -> None:
    made = Gates("r", compile_rules(written), records={"s": wish})
    asked = decide(made, TOOL, "s", name)
    if isinstance(asked, NeedsPolicy):
        final = strictness(conclude(made, asked, answer))
        if asked.at_least_approve is not None:
            assert final >= Strictness.APPROVE
        if answer.verdict is PolicyVerdict.REJECT:
            assert final is Strictness.DENY


def test_rules_are_described_in_order_with_the_default() -> None:
    rules = compile_rules([Rule("pay", Action.APPROVE, "bank", approval="money", reason="dear")], default=Action.DENY)
    assert [(row.rule, row.match, row.server, row.action, row.workflow) for row in rules.described()] == [
        ("rules[0] pay", "pay", "bank", "approve", "money"),
        ("defaults", "everything else", "", "deny", ""),
    ]


def test_workflows_are_named_by_their_first_rule_and_by_the_defaults() -> None:
    again = Rule("wipe_*", Action.APPROVE, approval="ops")
    rules = compile_rules([*EXAMPLE, again], default=Action.APPROVE, default_workflow="night")
    assert rules.workflows() == {"ops": "rules[1] delete_*", "money": "rules[2] pay_*", "night": "defaults"}
