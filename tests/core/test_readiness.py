"""Readiness of a gateway, for every state of it and its store."""

from __future__ import annotations

import itertools

import pytest

from taskgate.core.readiness import readiness_of


@pytest.mark.parametrize(("serving", "shared", "passthrough"), itertools.product([False, True], repeat=3))
def test_a_gateway_with_its_store_is_ready_while_it_serves(serving: bool, shared: bool, passthrough: bool) -> None:
    found = readiness_of(serving=serving, store_unavailable=False, shared=shared, passthrough=passthrough)
    assert (found.ready, found.degraded) == (serving, ())


@pytest.mark.parametrize(("serving", "shared", "passthrough"), itertools.product([False, True], repeat=3))
def test_a_gateway_without_its_store_is_ready_only_with_passthrough(
    serving: bool, shared: bool, passthrough: bool
) -> None:
    found = readiness_of(serving=serving, store_unavailable=True, shared=shared, passthrough=passthrough)
    assert found.ready is (serving and shared and passthrough)
    assert {"tasks", "approvals"} <= set(found.degraded)
    assert ("plain_calls" in found.degraded) is (shared and not passthrough)
    assert ("sessions_of_other_gateways" in found.degraded) is shared
