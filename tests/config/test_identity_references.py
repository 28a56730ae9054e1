"""`check` names approvers, credentials and requirements of scopes that cannot have an effect; a correct file is silent."""

from __future__ import annotations

import hashlib

import pytest

from taskgate.config import load_text
from taskgate.config.problems import Problem

ISSUER = "auth: {jwt: [{issuer: 'https://login.example', jwks_url: 'https://login.example/keys'}]}\n"


def token(name: str, *roles: str, **more: str) -> str:
    keys = "".join(f", {key}: {value}" for key, value in more.items())
    return f"- {{id: {name}, sha256: {hashlib.sha256(name.encode()).hexdigest()}, roles: [{', '.join(roles)}]{keys}}}\n"


TOKENS = (
    "servers: {files: {command: x}}\ntokens:\n"
    + token("ann", "approver", "finance")
    + token("agent", "builders")
    + token("tim", "approver", tenant="acme")
)


def warnings_of(text: str) -> list[Problem]:
    return list(load_text(text, "t.yaml", environment={}).warnings)


def workflow(*approvers: str) -> str:
    return f"approval: {{money: {{approvers: [{', '.join(map(repr, approvers))}]}}}}\n"


@pytest.mark.parametrize(
    ("approver", "expected"),
    [
        ("an", 'did you mean "ann"?'),
        ("tim", "write acme/tim"),
        ("acme/ann", "defined"),
        ("x*", "defined: acme/tim, agent, ann"),
        ("role:aprover", 'did you mean "approver"?'),
        ("role:x*", "defined"),
        ("group:finanse", 'did you mean "finance"?'),
        ("group:approver", "write role:approver"),
        ("agent", "add the role approver"),
        ("group:builders", "add the role approver"),
        ("role:builders", "add the role approver"),
        ("role:viewer", "add the role approver"),
    ],
)
def test_approver_who_cannot_decide_is_named(approver: str, expected: str) -> None:
    (warning,) = warnings_of(TOKENS + workflow(approver))
    assert warning.key == "approval.money.approvers[0]"
    assert expected in warning.hint


@pytest.mark.parametrize(
    "approver",
    [
        "*",
        "operator",
        "ann",
        "a*",
        "acme/*",
        "acme/tim",
        "role:approver",
        "role:operator",
        "role:a*",
        "role:finance",
        "group:finance",
        "group:f*",
        "https://login.example#12",
        "acme/https://login.example#12",
    ],
)
def test_known_approver_is_not_named(approver: str) -> None:
    assert warnings_of(TOKENS + workflow(approver)) == []


@pytest.mark.parametrize("approver", ["group:anything", "role:anything", "role:builders", "*@example.com"])
def test_groups_of_an_issuer_are_not_known(approver: str) -> None:
    assert warnings_of(TOKENS + ISSUER + workflow(approver)) == []


def test_unknown_token_is_named_with_an_issuer_too() -> None:
    (warning,) = warnings_of(TOKENS + ISSUER + workflow("an"))
    assert warning.hint == 'did you mean "ann"?'


def test_holder_of_a_certificate_may_be_an_approver() -> None:
    auth = "auth: {certificates: [{name: 'cn:ops', id: ops, roles: [approver], tenant: acme}]}\n"
    assert warnings_of(TOKENS + auth + workflow("acme/ops")) == []


def test_slack_user_without_a_known_token_is_named() -> None:
    people = "approvers: {U1: an, U2: ann, U3: tim, U4: 'u:1'}"
    channel = f"{{type: slack, channel: c, bot_token: t, app_token: a, {people}}}"
    (warning,) = warnings_of(f"{TOKENS}approval: {{money: {{channels: [{channel}]}}}}\n")
    assert (warning.key, warning.hint) == ("approval.money.channels[0].approvers.U1", 'did you mean "ann"?')


SCOPES = """\
scopes:
  default: {default_servers: ["*"]}
  closed: {default_servers: ["*"], enabled: false}
  finance: {default_servers: ["*"], require: {groups: [finance]}}
"""


@pytest.mark.parametrize(
    ("more", "key", "expected"),
    [
        (token("x", scope="closed"), "tokens[3].scope", "disabled"),
        (token("x", "builders", scope="finance"), "tokens[3].scope", "requires one of the groups finance"),
        (
            "auth: {certificates: [{name: 'cn:x', id: x, scope: defalt}]}\n",
            "auth.certificates[0].scope",
            'there is no scope "defalt"',
        ),
        (token("x", "aprover"), "tokens[3].roles[0]", "is no role of the gateway"),
        (token("x", "Operator"), "tokens[3].roles[0]", "is no role of the gateway"),
    ],
)
def test_credential_that_opens_nothing_is_named(more: str, key: str, expected: str) -> None:
    (warning,) = warnings_of(TOKENS + more + SCOPES)
    assert warning.key == key
    assert expected in warning.message


def test_credential_with_a_scope_or_a_group_in_use_is_not_named() -> None:
    more = token("x", "finance", scope="finance") + token("y", "operators", scope="default") + token("z", "admins")
    text = TOKENS + more + SCOPES.replace("[finance]}}", "[finance, operators]}}") + workflow("group:admins", "ann")
    assert [warning.key for warning in warnings_of(text)] == ["approval.money.approvers[0]"]
    assert warnings_of(TOKENS + token("x", "operators") + "cedar: {}\n") == []
    assert warnings_of(TOKENS + "auth: {certificates: [{name: 'cn:x', id: x, scope: default}]}\n") == []


@pytest.mark.parametrize(
    ("requirement", "key", "expected"),
    [
        ("groups: [finanse]", "groups[0]", 'did you mean "finance"?'),
        ("groups: [finance, hr]", "groups[1]", "defined"),
        ("oauth_scopes: [files]", "oauth_scopes", "add auth.jwt"),
        ("claims: {team: [a]}", "claims", "add auth.jwt"),
    ],
)
def test_requirement_that_no_credential_fulfils_is_named(requirement: str, key: str, expected: str) -> None:
    text = f"{TOKENS}scopes: {{default: {{default_servers: ['*'], require: {{{requirement}}}}}}}\n"
    (warning,) = warnings_of(text)
    assert warning.key == f"scopes.default.require.{key}"
    assert expected in warning.hint
    assert warnings_of(text + ISSUER) == []
