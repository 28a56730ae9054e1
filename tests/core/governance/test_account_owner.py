"""Who may connect an account for a principal."""

from __future__ import annotations

import pytest

from taskgate.core.governance.approver import Approver
from taskgate.core.identity.caller import ANONYMOUS, OPERATOR

LOCAL = frozenset({ANONYMOUS, "local:ann"})
NONE: frozenset[str] = frozenset()
EVERY_ROLE = frozenset({"viewer", "approver", "operator", "admin"})


@pytest.mark.parametrize(
    ("who", "principal", "operators_own", "owns"),
    [
        (Approver("ann"), "ann", NONE, True),
        (Approver("ann"), "bob", NONE, False),
        (Approver("ann", EVERY_ROLE), "bob", NONE, False),
        (Approver(OPERATOR, EVERY_ROLE), "bob", NONE, False),
        (Approver(OPERATOR, EVERY_ROLE), "bob", LOCAL, False),
        (Approver(OPERATOR), ANONYMOUS, LOCAL, True),
        (Approver(OPERATOR), "local:ann", LOCAL, True),
        (Approver(OPERATOR), "local:bob", LOCAL, False),
        (Approver(OPERATOR), ANONYMOUS, NONE, False),
        (Approver("ann", EVERY_ROLE), ANONYMOUS, LOCAL, False),
        (Approver("ann", identities=frozenset({"ann", "ann-laptop"})), "ann-laptop", NONE, True),
        (Approver("ann", identities=frozenset({"ann", "ann-laptop"})), "bob-laptop", NONE, False),
    ],
)
def test_account_belongs_to_the_person_of_the_principal(
    who: Approver, principal: str, operators_own: frozenset[str], owns: bool
) -> None:
    assert who.owns_account_of(principal, operators_own) is owns
