"""Callers, and the key under which their limits are counted."""

from __future__ import annotations

from taskgate.core.identity.caller import ANONYMOUS, Caller


def test_limits_are_kept_by_identity_or_by_address_and_never_by_an_invented_name() -> None:
    ann = Caller("ann", frozenset(), address="10.1.1.1")
    one, two = Caller(ANONYMOUS, frozenset(), address="10.1.1.1"), Caller(ANONYMOUS, frozenset(), address="10.1.1.2")
    assert not ann.anonymous
    assert one.anonymous
    assert ann.limit_key == "ann"
    assert one.limit_key != two.limit_key
    assert "10.1.1.1" in one.limit_key
