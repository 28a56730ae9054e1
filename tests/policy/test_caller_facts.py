"""Facts about the caller in policies: the example of the documents, unknown facts, and calls that are evaluated again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.identity.issuer import an_issuer
from tests.identity.test_callers_by_issuer import RESOURCE, config, notes
from tests.policy.test_cedar import NOON, PAYMENTS, engine, request
from tests.virtual_time import Gateway, virtual_time

from taskgate.core.governance.pipeline import PolicyVerdict
from taskgate.core.identity.caller import CredentialFacts
from taskgate.policy.cedar import BadPolicy

FORWARD, REJECT = PolicyVerdict.FORWARD, PolicyVerdict.REJECT
GOVERNANCE = Path(__file__).parents[2] / "docs" / "governance.md"
ANN = "acme/https://login.example#ann"
FACTS = CredentialFacts(frozenset({"read", "release"}), "release-agent", NOON.timestamp - 900)


def example() -> str:
    (found,) = [
        text for text in re.findall(r"```cedar\n(.*?)```", GOVERNANCE.read_text(), re.DOTALL) if "release" in text
    ]
    return str(found)


@pytest.mark.parametrize(
    ("principal", "roles", "facts", "verdict"),
    [
        (ANN, {"sre"}, FACTS, FORWARD),
        (ANN, {"sre"}, replace(FACTS, authenticated_at=NOON.timestamp + 30), FORWARD),
        (ANN, {"sre"}, replace(FACTS, authenticated_at=NOON.timestamp - 901), REJECT),
        (ANN, {"sre"}, replace(FACTS, authenticated_at=None), REJECT),
        (ANN, {"sre"}, replace(FACTS, client_id="other"), REJECT),
        (ANN, {"sre"}, replace(FACTS, client_id=""), REJECT),
        (ANN, {"sre"}, replace(FACTS, oauth_scopes=frozenset({"read"})), REJECT),
        (ANN, {"dev"}, FACTS, REJECT),
        (ANN.replace("acme", "other"), {"sre"}, FACTS, REJECT),
        (ANN.removeprefix("acme/"), {"sre"}, FACTS, REJECT),
        (ANN, {"sre"}, None, REJECT),
    ],
)
def test_the_documented_policy_with_caller_facts_works(
    principal: str, roles: set[str], facts: CredentialFacts | None, verdict: PolicyVerdict
) -> None:
    asked = request({}, principal=principal, roles=frozenset(roles), facts=facts)
    assert engine(example()).evaluate(asked).verdict is verdict


@pytest.mark.parametrize(
    ("condition", "facts", "verdict", "why"),
    [
        ('context.caller.principal == "agent" && context.caller.groups.contains("finance")', None, FORWARD, ""),
        ("context.caller.token_scopes.isEmpty()", None, FORWARD, ""),
        ('context.caller.client_id != "bad"', None, REJECT, "cannot be evaluated"),
        ('context.caller.client_id != "bad"', FACTS, FORWARD, ""),
        (
            "context.caller.authentication_age < 60",
            replace(FACTS, authenticated_at=None),
            REJECT,
            "cannot be evaluated",
        ),
        ('context.caller.tenant != "bad"', FACTS, REJECT, "cannot be evaluated"),
    ],
)
def test_unknown_facts_reject_the_call(
    condition: str, facts: CredentialFacts | None, verdict: PolicyVerdict, why: str
) -> None:
    text = f'permit (principal, action == Taskgate::Action::"Forward", resource) when {{ {condition} }};'
    answer = engine(text).evaluate(request({}, facts=facts))
    assert answer.verdict is verdict
    assert why in answer.reason


def test_older_policies_are_unchanged_and_misspelt_facts_are_found_at_load() -> None:
    assert engine(PAYMENTS).evaluate(request({"amount": 100}, facts=FACTS)).verdict is FORWARD
    with pytest.raises(
        BadPolicy, match=r"context\.caller has no 'scopes'; it has authentication_age, client_id, groups"
    ):
        engine('permit (principal, action, resource) when { context.caller.scopes.contains("x") };')


@virtual_time
async def test_facts_of_a_token_are_evaluated_for_tasks_too(tmp_path: Path) -> None:
    (tmp_path / "read.cedar").write_text(
        'permit (principal in Taskgate::Role::"sre", action == Taskgate::Action::"Forward", resource) when '
        '{ context.caller.client_id == "agent" && context.caller.token_scopes.contains("read") };'
    )
    async with an_issuer() as issuer:
        given: dict[str, Any] = {
            **config(issuer),
            "governance": {"rules": [{"match": "read", "action": "policy"}]},
            "cedar": {"policies": ["read.cedar"]},
        }
        async with Gateway(given, {"notes": notes()}, folder=tmp_path) as gate:
            good = issuer.token(aud=RESOURCE, groups=["sre"], scope="read", client_id="agent")
            caller = await gate.caller("2025", token=good)
            assert (await caller.call("notes__read")).text == "a note"
            made = await caller.call("notes__read", {}, task={"ttl": 60_000})
            ended = await caller.request("tasks/result", {"taskId": made.result["task"]["taskId"]})
            assert ended.text == "a note"
            for changes in ({"scope": "write"}, {"client_id": "other"}, {"groups": ["dev"]}):
                claims: dict[str, Any] = {"groups": ["sre"], "scope": "read", "client_id": "agent", **changes}
                other = await gate.caller("2025", token=issuer.token(aud=RESOURCE, **claims))
                assert "not permitted" in (await other.call("notes__read")).body.decode()
