"""The permissions of each role, and that a person has one identity regardless of the login."""

from __future__ import annotations

import pytest

from taskgate.core.governance.approval import (
    Binding,
    Changed,
    DecisionRefused,
    Refusal,
    State,
    Verdict,
    Voted,
    apply,
    approvals_that_count,
    may_decide,
    open_approval,
)
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.grants import covers, grant_from
from taskgate.core.governance.workflow import Workflow
from taskgate.core.identity.roles import OWNER_ROLES, Permission, Role, allows, groups_in

TABLE = {
    "viewer": {"see"},
    "approver": {"see", "decide"},
    "operator": {"see", "decide", "act"},
    "admin": {"see", "decide", "act", "configure"},
    "sre": set(),
}
ANN_IS = frozenset({"ann", "https://login.test#1", "slack:U1"})
TWO = Workflow("money", approvals_needed=2)


def binding(principal: str) -> Binding:
    return Binding(principal, "s", "pay", "sha256:a", "sha256:d", "r", 1_000_000)


def ann(by: str) -> Approver:
    return Approver(by, frozenset({"approver"}), identities=ANN_IS)


@pytest.mark.parametrize("role", TABLE)
@pytest.mark.parametrize("permission", list(Permission))
def test_each_role_may_do_what_the_table_says(role: str, permission: Permission) -> None:
    assert allows({role}, permission) == (permission.value in TABLE[role])
    assert Approver("x", frozenset({role})).may(permission) == (permission.value in TABLE[role])


def test_roles_add_up_and_groups_give_nothing() -> None:
    assert [permission for permission in Permission if allows({"viewer", "sre"}, permission)] == [Permission.SEE]
    assert all(allows(OWNER_ROLES, permission) for permission in Permission)
    assert groups_in({"viewer", "sre", "admin"}) == {"sre"}
    assert {role.value for role in Role} == set(TABLE) - {"sre"}


def test_an_approver_may_view_and_a_viewer_may_not_decide() -> None:
    assert may_decide(Workflow("w"), binding("agent"), Approver("v", frozenset({"viewer"}))) is Refusal.NOT_AN_APPROVER
    assert may_decide(Workflow("w"), binding("agent"), Approver("a", frozenset({"admin"}))) is None


def test_a_workflow_names_groups_and_a_role_is_no_group() -> None:
    finance = Workflow("w", approvers=("group:fin*",))
    assert may_decide(finance, binding("agent"), Approver("ann", frozenset({"approver", "finance"}))) is None
    assert may_decide(finance, binding("agent"), Approver("ann", frozenset({"approver"}))) is Refusal.NOT_AN_APPROVER
    roles = Workflow("w", approvers=("group:approver",))
    assert may_decide(roles, binding("agent"), Approver("ann", frozenset({"approver"}))) is Refusal.NOT_AN_APPROVER


@pytest.mark.parametrize("asked_as", sorted(ANN_IS))
@pytest.mark.parametrize("decides_as", sorted(ANN_IS))
def test_a_person_cannot_approve_their_own_call_under_another_name(asked_as: str, decides_as: str) -> None:
    assert may_decide(Workflow("w"), binding(asked_as), ann(decides_as)) is Refusal.OWN_CALL


def test_the_operator_who_is_also_a_caller_is_not_a_second_person_for_that_caller() -> None:
    owner = Approver("operator", OWNER_ROLES, logged_in=True, identities=frozenset({"operator", "ann"}))
    assert may_decide(Workflow("w"), binding("ann"), owner) is Refusal.OWN_CALL
    assert may_decide(Workflow("w"), binding("operator"), owner) is None
    assert may_decide(Workflow("w"), binding("bob"), owner) is None


def test_two_votes_of_one_person_are_one() -> None:
    asked = open_approval("ap", TWO, "r", binding("agent"), 0)
    once = apply(asked, TWO, Voted(ann("ann"), Verdict.APPROVE, 1))
    assert isinstance(once, Changed)
    again = apply(once.approval, TWO, Voted(ann("slack:U1"), Verdict.APPROVE, 2))
    assert isinstance(again, DecisionRefused)
    assert again.why is Refusal.ALREADY_VOTED
    bob = apply(once.approval, TWO, Voted(Approver("bob", frozenset({"approver"})), Verdict.APPROVE, 3))
    assert isinstance(bob, Changed)
    assert bob.approval.state is State.APPROVED
    people = {"ann": ann("ann"), "bob": Approver("bob", frozenset({"approver"}))}
    assert approvals_that_count(bob.approval, TWO, people) == 2
    # Since then the file declares both as one person.
    one = frozenset({"ann", "bob"})
    merged = {name: Approver(name, frozenset({"approver"}), identities=one) for name in one}
    assert approvals_that_count(bob.approval, TWO, merged) == 1
    grant = grant_from(bob.approval, "g", 4)
    assert covers(grant, TWO, binding("agent"), people, 5)
    assert not covers(grant, TWO, binding("agent"), merged, 5)


def test_a_workflow_may_require_a_fresh_login_to_approve_but_not_to_deny() -> None:
    careful = Workflow("w", max_auth_age_s=60)
    asked = open_approval("ap", careful, "r", binding("agent"), 0)

    def vote(verdict: Verdict, at: int | None) -> Changed | DecisionRefused:
        bob = Approver("bob", frozenset({"approver"}), authenticated_at=at)
        return apply(asked, careful, Voted(bob, verdict, 100_000))

    # One in the future means that a clock was set back since.
    for old in (None, 39, 161):
        refused = vote(Verdict.APPROVE, old)
        assert isinstance(refused, DecisionRefused)
        assert refused.why is Refusal.LOGIN_TOO_OLD
    assert isinstance(vote(Verdict.APPROVE, 40), Changed)
    assert isinstance(vote(Verdict.APPROVE, 160), Changed)
    assert isinstance(vote(Verdict.DENY, None), Changed)


@pytest.mark.parametrize(
    ("who", "identities", "principal", "reached"),
    [
        ("ann", (), "acme/agent", True),
        ("https://login.test#1", (), "acme/agent", True),
        ("acme/ann", (), "acme/agent", True),
        ("acme/ann", (), "globex/agent", False),
        ("acme/ann", (), "agent", False),
        ("acme/ann", (), "acmes/agent", False),
        ("slack:U1", ("slack:U1", "acme/ann"), "globex/agent", False),
        ("slack:U1", ("slack:U1", "acme/ann"), "acme/agent", True),
        ("ann", ("ann", "acme/ann"), "agent", False),
        ("ann", ("ann", "acme/ann"), "ann", True),
    ],
)
def test_a_person_may_access_their_tenant_and_without_a_tenant_all(
    who: str, identities: tuple[str, ...], principal: str, reached: bool
) -> None:
    viewer = Approver(who, frozenset({"viewer"}), identities=frozenset(identities))
    assert viewer.reaches(principal) is viewer.may_see_data_of(principal) is reached


def test_without_a_role_only_own_data_is_visible() -> None:
    assert Approver("acme/ann").may_see_data_of("acme/ann")
    assert not Approver("acme/ann").may_see_data_of("acme/agent")


@pytest.mark.parametrize(
    ("names", "only", "tenant"),
    [
        ({"ann"}, None, None),
        ({"ann"}, "bob", None),
        ({"ann", "acme/ann"}, None, "acme"),
        ({"ann", "acme/ann"}, "other/bob", "acme"),
        ({"ann", "acme/ann"}, "acme/ann", "acme"),
        ({"ann", "acme/ann"}, "ann", None),
    ],
)
def test_a_search_is_limited_to_the_tenant_of_a_person_unless_it_is_for_the_name_they_use(
    names: set[str], only: str | None, tenant: str | None
) -> None:
    assert Approver("ann", identities=frozenset(names)).tenant_of_search(only) == tenant
