"""Any JSON is relayed unchanged: in params, results, notifications and errors, in every pairing of one generation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.gateway import Gateway
from tests.harness.raw_client import RawClient

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.virtual_time]

ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**90), max_value=2**90)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)
FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
PAIRINGS = [(False, "old"), (False, "pipe"), (True, "new")]


@pytest.mark.parametrize(("stateless", "server"), PAIRINGS)
@given(value=ANY_JSON)
@FEW
async def test_any_value_passes_through_params_and_results(
    gateway: Gateway, stateless: bool, server: str, value: Any
) -> None:
    async with RawClient(gateway.url, stateless) as caller:
        answer = await caller.call(f"{server}__mirror", {"value": value}, vendorParam=value)
    assert answer.result["vendor/extra"] == value
    assert answer.result["structuredContent"] == {"value": value}
    assert answer.result["seen"]["vendorParam"] == value
    assert repr(answer.result["vendor/extra"]) == repr(value), "not even 1 for 1.0"


@pytest.mark.parametrize(("stateless", "server"), PAIRINGS)
@given(value=ANY_JSON)
@FEW
async def test_any_value_passes_through_errors(gateway: Gateway, stateless: bool, server: str, value: Any) -> None:
    async with RawClient(gateway.url, stateless) as caller:
        answer = await caller.call(f"{server}__fail", {"value": value})
    assert answer.error == {"code": -31999, "message": "as asked", "data": {"value": value}}


@pytest.mark.parametrize(("stateless", "server"), [(False, "old"), (True, "new")])
@given(value=ANY_JSON)
@FEW
async def test_any_value_passes_through_notifications(
    gateway: Gateway, stateless: bool, server: str, value: Any
) -> None:
    async with RawClient(gateway.url, stateless) as caller:
        answer = await caller.call(f"{server}__notify", {"value": value})
    notes = [message for message in answer.messages if message.get("method") == "notifications/vendor/mirror"]
    assert [note["params"]["value"] for note in notes] == [value]
    assert answer.result["vendor/extra"] == value


@pytest.mark.parametrize("stateless", [False, True])
async def test_unknown_fields_of_a_tool_are_listed_unchanged(gateway: Gateway, stateless: bool) -> None:
    async with RawClient(gateway.url, stateless) as caller:
        tools = (await caller.request("tools/list")).result["tools"]
    mirrored = [tool for tool in tools if tool["name"].endswith("__mirror")]
    assert len(mirrored) == 3
    assert all(tool["vendorField"] == {"big": 2**70} for tool in mirrored)


@pytest.mark.parametrize(("stateless", "server"), [(False, "new"), (True, "old"), (True, "pipe")])
async def test_results_across_generations_lose_only_fields_of_the_other_generation(
    gateway: Gateway, stateless: bool, server: str
) -> None:
    value = {"big": 2**80, "deep": [{"a": None}], "text": "ß\u2028"}
    async with RawClient(gateway.url, stateless) as caller:
        answer = await caller.call(f"{server}__mirror", {"value": value})
    assert answer.result["vendor/extra"] == value
    assert ("resultType" in answer.result) is stateless
