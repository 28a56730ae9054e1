"""The decision about a request, as a table: access class, identity, scope and decision."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from taskgate.core.identity.access import Access, AccessRefusal, TargetScope, decide
from taskgate.core.identity.identity import Identity
from taskgate.core.identity.roles import Permission
from taskgate.core.settings.identity import ScopeRequirement

GATEWAY = frozenset({"https://gate", "https://gate/mcp"})
DEFAULT = TargetScope("default", True, "https://gate/mcp")
DEPLOY = TargetScope("deploy", True, "https://gate/mcp/deploy")
GUARDED = replace(
    DEPLOY, requirement=ScopeRequirement(groups=("sre",), oauth_scopes=("deploy",), claims={"org": ("x",)})
)
HANDED = TargetScope("tmp-1", True, "https://gate/mcp/tmp-1", handed_over_by="acme/boss")
NOWHERE = TargetScope("none", False, "https://gate/mcp/none")

NO_CREDENTIAL = Identity()
AGENT = Identity("agent")
BOUND = Identity("bound", scope="deploy")
ANONYMOUS_SCOPE = Identity(scope="deploy")
NO_CALLS = Identity("ann", frozenset({"approver"}), may_call=False)
OPERATOR = Identity("operator", frozenset({"operator", "admin"}))
SRE = Identity("sre", frozenset({"sre"}), oauth_scopes=frozenset({"deploy"}), claims={"org": "x"})
FOR_GATEWAY = Identity("i#a", frozenset({"admin"}), audiences=frozenset({"https://gate"}))
FOR_DEFAULT = Identity("i#a", frozenset({"admin"}), audiences=frozenset({"https://gate/mcp"}))
FOR_DEPLOY = Identity("i#a", frozenset({"admin"}), audiences=frozenset({"https://gate/mcp/deploy"}))
ELSEWHERE = Identity("i#a", frozenset({"admin"}), audiences=frozenset({"https://other"}))

R = AccessRefusal
CALLS: list[tuple[str, Identity, TargetScope, AccessRefusal | None]] = [
    ("anonymous where all scopes are open", NO_CREDENTIAL, DEFAULT, None),
    ("anonymous in the anonymous scope", ANONYMOUS_SCOPE, DEPLOY, None),
    ("anonymous in another scope", ANONYMOUS_SCOPE, DEFAULT, R.NO_CREDENTIAL),
    ("anonymous in a scope that does not exist", ANONYMOUS_SCOPE, NOWHERE, R.NO_CREDENTIAL),
    ("anonymous in a temporary scope", NO_CREDENTIAL, HANDED, R.NO_CREDENTIAL),
    ("a token", AGENT, DEPLOY, None),
    ("a token, no such scope", AGENT, NOWHERE, R.NO_SUCH_SCOPE),
    ("a token that may not call", NO_CALLS, DEFAULT, R.MAY_NOT_CALL),
    ("a bound token in its scope", BOUND, DEPLOY, None),
    ("a bound token in another scope", BOUND, DEFAULT, R.NO_SUCH_SCOPE),
    ("a bound operator in another scope", replace(OPERATOR, scope="deploy"), DEFAULT, R.NO_SUCH_SCOPE),
    ("another caller in a temporary scope", AGENT, HANDED, R.NO_SUCH_SCOPE),
    ("the token of a temporary scope", Identity("tmp-1", scope="tmp-1"), HANDED, None),
    ("an operator in a temporary scope", OPERATOR, HANDED, None),
    ("an operator of its tenant", replace(OPERATOR, principal="acme/ops"), HANDED, None),
    ("an operator of another tenant", replace(OPERATOR, principal="globex/ops"), HANDED, R.NO_SUCH_SCOPE),
    ("a token for the default scope", FOR_DEFAULT, DEFAULT, None),
    ("a token for the default scope in another", FOR_DEFAULT, DEPLOY, R.OTHER_AUDIENCE),
    ("a token for a scope", FOR_DEPLOY, DEPLOY, None),
    ("a token for a scope in another", FOR_DEPLOY, DEFAULT, R.OTHER_AUDIENCE),
    ("a token for the gateway", FOR_GATEWAY, DEFAULT, R.OTHER_AUDIENCE),
    ("a token for another resource", ELSEWHERE, DEFAULT, R.OTHER_AUDIENCE),
    ("everything that is required", SRE, GUARDED, None),
    ("without an OAuth scope", replace(SRE, oauth_scopes=frozenset()), GUARDED, R.LACKS_OAUTH_SCOPE),
    ("without a group", replace(SRE, roles=frozenset()), GUARDED, R.LACKS_GROUP),
    ("without a claim", replace(SRE, claims={"org": "y"}), GUARDED, R.LACKS_CLAIM),
    ("an operator without what is required", OPERATOR, GUARDED, R.LACKS_OAUTH_SCOPE),
]


@pytest.mark.parametrize(("identity", "scope", "expected"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_access_to_calls_is_decided_by_credential_and_scope(
    identity: Identity, scope: TargetScope, expected: AccessRefusal | None
) -> None:
    assert decide(Access.CALL, identity, scope, GATEWAY, anonymous=True) is expected


def test_a_route_without_anonymous_access_requires_a_credential() -> None:
    for access in Access:
        expected = None if access is Access.PUBLIC else R.NO_CREDENTIAL
        assert decide(access, NO_CREDENTIAL, DEFAULT, GATEWAY, anonymous=False) is expected
    assert decide(Access.LOGIN, NO_CREDENTIAL, None, GATEWAY, anonymous=True) is None


ROLES = {
    (): set[Access](),
    ("viewer",): {Access.SEE},
    ("approver",): {Access.SEE, Access.DECIDE},
    ("operator",): {Access.SEE, Access.DECIDE, Access.ACT},
    ("admin",): {Access.SEE, Access.DECIDE, Access.ACT, Access.CONFIGURE},
    ("sre", "see", "act"): set[Access](),
}


@pytest.mark.parametrize("roles", ROLES)
@pytest.mark.parametrize("may_call", [True, False])
def test_permissions_come_from_roles_whether_or_not_the_holder_may_call(roles: tuple[str, ...], may_call: bool) -> None:
    holder = Identity("ann", frozenset(roles), may_call=may_call, scope="deploy")
    for permission in Permission:
        access = Access(permission.value)
        expected = None if access in ROLES[roles] else R.LACKS_PERMISSION
        assert decide(access, holder, None, GATEWAY, anonymous=False) is expected
    assert decide(Access.LOGIN, holder, None, GATEWAY, anonymous=False) is None


@pytest.mark.parametrize(
    ("identity", "expected"),
    [(FOR_GATEWAY, None), (FOR_DEFAULT, None), (FOR_DEPLOY, R.OTHER_AUDIENCE), (ELSEWHERE, R.OTHER_AUDIENCE)],
)
def test_a_token_for_a_scope_or_another_resource_opens_neither_api_nor_console(
    identity: Identity, expected: AccessRefusal | None
) -> None:
    for access in (Access.LOGIN, Access.SEE, Access.DECIDE, Access.ACT, Access.CONFIGURE):
        assert decide(access, identity, None, GATEWAY, anonymous=False) is expected


def test_every_refusal_has_a_status() -> None:
    assert {refusal.status for refusal in AccessRefusal} == {401, 403, 404, 429, 503}


def test_only_invalid_credentials_count_as_failed_attempts() -> None:
    failed = {refusal for refusal in AccessRefusal if refusal.is_failed_authentication}
    assert failed == {R.UNKNOWN_CREDENTIAL, R.EXPIRED, R.REVOKED}
