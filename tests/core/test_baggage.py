"""Only listed entries of baggage are passed on."""

from __future__ import annotations

import pytest

from taskgate.core.baggage import allowed_baggage
from taskgate.core.globs import AnyOf, Glob


@pytest.mark.parametrize(
    ("header", "allowed", "kept"),
    [
        ("tenant=acme,user=ann", ["tenant"], "tenant=acme"),
        ("tenant=acme , user=ann", ["user"], "user=ann"),
        ("app.region=eu;p=1,app.zone=a,user=ann", ["app.*"], "app.region=eu;p=1,app.zone=a"),
        ("tenant=acme,user=ann", ["*"], "tenant=acme,user=ann"),
        ("tenant=acme,user=ann", [], ""),
        ("tenant", ["tenant"], ""),
        ("", ["*"], ""),
        ("tenants=acme", ["tenant"], ""),
    ],
)
def test_entries_are_kept_by_name(header: str, allowed: list[str], kept: str) -> None:
    assert allowed_baggage(header, AnyOf.of(map(Glob.compile, allowed))) == kept
