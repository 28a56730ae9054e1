"""Which claims are accepted, and what a scope requires of an identity."""

from __future__ import annotations

from typing import Any

import pytest

from taskgate.core.identity.caller import CredentialFacts
from taskgate.core.identity.claims import (
    TokenProblem,
    TokenRefused,
    bound_certificate,
    identity_in,
    strings_in,
)
from taskgate.core.identity.identity import (
    Identity,
    claim_at,
    missing_claim,
    missing_group,
    missing_oauth_scopes,
    principal_name,
    tenant_of,
)
from taskgate.core.settings.identity import ClaimNames, Issued, ScopeRequirement

NOW = 1_800_000_000.0
GOOD: dict[str, Any] = {"iss": "https://i.example", "sub": "ann", "aud": "gate", "exp": NOW + 60}


def identity(rules: Issued | None = None, **changes: Any) -> Identity:
    claims = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    return identity_in(claims, rules or Issued(issuer="https://i.example"), NOW)[0]


def test_facts_are_read_from_where_the_issuer_puts_them() -> None:
    rules = Issued(
        issuer="https://i.example",
        claims=ClaimNames(groups="realm.roles", tenant="org", scopes="scp"),
        roles={"approver": ("oncall",)},
    )
    found = identity(
        rules, realm={"roles": ["oncall", "dev", "admin"]}, org="acme", scp=["read", "write"], azp="agent", auth_time=5
    )
    assert found.principal == "acme/https://i.example#ann"
    assert found.roles == {"oncall", "dev", "approver"}, "a group called like a role of ours gives none"
    assert (found.tenant, found.client_id, found.authenticated_at) == ("acme", "agent", 5)
    assert found.oauth_scopes == {"read", "write"}
    assert found.audiences == {"gate"}
    assert found.facts == CredentialFacts(frozenset({"read", "write"}), "agent", 5)
    assert Identity("ann", frozenset({"approver"})).facts is None, "no issuer said anything about a token of our own"
    assert not found.anonymous
    assert not found.is_operator


def test_given_audiences_replace_the_resource() -> None:
    rules = Issued(issuer="https://i.example", audiences=("gate", "door"))
    assert identity(rules).audiences is None
    with pytest.raises(TokenRefused) as caught:
        identity(rules, aud=["elsewhere"])
    assert caught.value.problem is TokenProblem.OTHER_AUDIENCE


@pytest.mark.parametrize("org", [None, 7, "", "a b", "a/b", "https:", "x" * 65])
def test_with_tenants_a_token_without_a_tenant_is_refused(org: Any) -> None:
    with pytest.raises(TokenRefused) as caught:
        identity(Issued(issuer="https://i.example", claims=ClaimNames(tenant="org")), org=org)
    assert caught.value.problem is TokenProblem.NO_TENANT


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ("yes", True),
        (["no", "yes"], True),
        (True, True),
        (7, True),
        ("no", False),
        (None, False),
        ({}, False),
        ([], False),
    ],
)
def test_required_claims_are_required(value: Any, good: bool) -> None:
    rules = Issued(issuer="https://i.example", require={"ok": ("yes", "true", "7")})
    if good:
        assert identity(rules, ok=value)
    else:
        with pytest.raises(TokenRefused) as caught:
            identity(rules, ok=value)
        assert caught.value.problem is TokenProblem.CLAIM_MISSING


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"nbf": "soon"}, TokenProblem.NOT_A_TIME),
        ({"iat": NOW + 3600}, TokenProblem.ISSUED_IN_FUTURE),
        ({"aud": [f"a{n}" for n in range(501)]}, TokenProblem.MANY_AUDIENCES),
        ({"aud": []}, TokenProblem.NO_AUDIENCE),
        ({"groups": [f"g{n}" for n in range(501)]}, TokenProblem.MANY_VALUES),
        ({"exp": -1}, TokenProblem.NO_EXPIRY),
        ({"exp": NOW - 61}, TokenProblem.EXPIRED),
        ({"iss": "https://other.example"}, TokenProblem.OTHER_ISSUER),
        ({"sub": "\n"}, TokenProblem.NO_SUBJECT),
    ],
)
def test_malformed_claims_are_refused(changes: dict[str, Any], problem: TokenProblem) -> None:
    with pytest.raises(TokenRefused) as caught:
        identity(**changes)
    assert caught.value.problem is problem


def test_claim_values_are_lists_or_space_separated_text() -> None:
    assert strings_in("a b") == ("a b",)
    assert strings_in("a b", split=True) == ("a", "b")
    assert strings_in(["a", 1, "b"]) == ("a", "b")
    assert strings_in(7) == ()
    assert identity(client_id=7).client_id == ""
    assert identity(nbf=NOW - 5, iat=NOW - 5).principal == "https://i.example#ann"


@pytest.mark.parametrize(
    ("requirement", "unmet"),
    [
        (
            ScopeRequirement(
                groups=(
                    "sre",
                    "ops",
                )
            ),
            None,
        ),
        (ScopeRequirement(groups=("ops",)), "a group"),
        (ScopeRequirement(claims={"a.b": ("1",), "flag": ("true",)}), None),
        (ScopeRequirement(claims={"list": ("y",)}), None),
        (ScopeRequirement(claims={"list": ("z",)}), "a claim"),
        (ScopeRequirement(claims={"a.c": ("1",)}), "a claim"),
        (ScopeRequirement(claims={"flag.deep": ("1",)}), "a claim"),
        (ScopeRequirement(claims={"a": ("1",)}), "a claim"),
    ],
)
def test_requirements_are_met_or_report_what_is_missing(requirement: ScopeRequirement, unmet: str | None) -> None:
    claims = {"a": {"b": 1}, "flag": True, "list": ["x", "y"], "dotted.name": "v"}
    person = Identity("ann", frozenset({"sre"}), oauth_scopes=frozenset({"read"}), claims=claims)
    assert missing_group(requirement, person) == (unmet == "a group")
    assert missing_claim(requirement, person) == (unmet == "a claim")
    assert not missing_oauth_scopes(requirement, person)
    assert missing_oauth_scopes(
        ScopeRequirement(
            oauth_scopes=(
                "read",
                "write",
            )
        ),
        person,
    )
    assert claim_at(claims, "dotted.name") == "v"


@pytest.mark.parametrize("realm", [{"roles": ["dev"]}, {}, "text", None])
def test_a_claim_named_like_a_path_does_not_replace_the_value_of_the_path(realm: Any) -> None:
    rules = Issued(issuer="https://i.example", claims=ClaimNames(groups="realm.roles"), roles={"admin": ("root",)})
    claims = {**GOOD, "realm": realm, "realm.roles": ["root"]}
    found = identity_in(claims, rules, NOW)[0]
    assert found.roles == frozenset(realm.get("roles", ()) if isinstance(realm, dict) else ())
    assert missing_claim(ScopeRequirement(claims={"realm.roles": ("root",)}), found)
    assert claim_at({"https://i.example/groups": ["dev"]}, "https://i.example/groups") == ["dev"]


@pytest.mark.parametrize("name", ["typ", "token_type", "token_use", "token_usage"])
@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("Bearer", None),
        ("access_token", None),
        (7, None),
        ("Refresh", TokenProblem.NOT_ACCESS_TOKEN),
        ("urn:ietf:params:oauth:token-type:refresh_token", TokenProblem.NOT_ACCESS_TOKEN),
        ("ID", TokenProblem.NOT_ACCESS_TOKEN),
        ("Logout", TokenProblem.NOT_ACCESS_TOKEN),
        ("DPoP", TokenProblem.PROOF),
    ],
)
def test_other_kinds_of_token_are_refused(name: str, kind: Any, problem: TokenProblem | None) -> None:
    claims = {**GOOD, name: kind}
    if problem is None:
        assert bound_certificate(claims) == ""
    else:
        with pytest.raises(TokenRefused) as caught:
            bound_certificate(claims)
        assert caught.value.problem is problem


@pytest.mark.parametrize(
    "confirmation",
    [None, {}, [], "k", {"jkt": "x"}, {"jwk": {}}, {"x5t#S256": 7}, {"x5t#S256": ""}, {"x5t#S256": "x", "jkt": "x"}],
)
def test_tokens_bound_to_a_key_need_a_proof_that_the_gateway_can_check(confirmation: Any) -> None:
    with pytest.raises(TokenRefused) as caught:
        bound_certificate({**GOOD, "cnf": confirmation})
    assert caught.value.problem is TokenProblem.PROOF
    assert bound_certificate({**GOOD, "cnf": {"x5t#S256": "x"}, "token_type": "DPoP"}) == "x"


def test_logout_tokens_are_refused() -> None:
    with pytest.raises(TokenRefused) as caught:
        bound_certificate({**GOOD, "events": {"http://schemas.openid.net/event/backchannel-logout": {}}})
    assert caught.value.problem is TokenProblem.NOT_ACCESS_TOKEN


@pytest.mark.parametrize("tenant", ["", "acme"])
@pytest.mark.parametrize("name", ["ann", "https://i.example#ann", "local:1000"])
def test_a_principals_name_contains_its_tenant(tenant: str, name: str) -> None:
    assert tenant_of(principal_name(tenant, name)) == tenant
    assert Identity("x", frozenset({"operator"})).is_operator
    assert Identity().anonymous


def test_a_renewed_token_is_the_same_identity() -> None:
    one, renewed, other = (Identity(who, claims={"exp": at}) for who, at in (("ann", 1), ("ann", 2), ("bob", 1)))
    assert (one == renewed, one != renewed, one == other, one != other) == (True, False, False, True)
    assert len({one, renewed, other}) == 2
    assert one != "ann"
