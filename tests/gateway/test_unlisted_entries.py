"""A request for an entry that a server does not list is forwarded if only that server can be meant, and to no other server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.harness.changeable_server import ChangeableServer, changeable, tool
from tests.harness.gateway import running_gateway
from tests.harness.raw_client import RawClient

pytestmark = pytest.mark.virtual_time
CAPABILITIES: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}, "completions": {}}


def library(name: str, **attributes: Any) -> Any:
    """A server that answers more than it lists: any URI, any prompt, any completion; and its tool returns a link."""

    def linked(_params: dict[str, Any]) -> dict[str, Any]:
        link = {"type": "resource_link", "uri": f"https://shared.test/{name}/page", "name": "page"}
        embedded = {"type": "resource", "resource": {"uri": "https://shared.test/part", "text": name}}
        return {"result": {"content": [link, embedded]}}

    def read(params: dict[str, Any]) -> dict[str, Any]:
        inner = {"uri": f"inner://{name}/1", "text": "inner"}
        return {"result": {"contents": [{"uri": params["uri"], "text": name}, inner]}}

    def prompt(params: dict[str, Any]) -> dict[str, Any]:
        return {
            "result": {"messages": [{"role": "user", "content": {"type": "text", "text": f"{name} {params['name']}"}}]}
        }

    answers = {
        "tools/call": linked,
        "resources/read": read,
        "prompts/get": prompt,
        "completion/complete": lambda _params: {"result": {"completion": {"values": [name]}}},
    }
    lists: dict[str, list[dict[str, Any]]] = {
        "tools/list": [tool("link")],
        "resources/list": [{"uri": f"{name}://listed", "name": "listed"}],
        "resources/templates/list": [{"uriTemplate": f"{name}://item/{{id}}", "name": "item"}],
        "prompts/list": [{"name": "listed"}],
    }
    return changeable(capabilities=CAPABILITIES, lists=lists, answers=answers, **attributes)


def config(one: ChangeableServer, two: ChangeableServer, **more: Any) -> dict[str, Any]:
    return {"schema": 1, "servers": {"one": {"url": one.url}, "two": {"url": two.url}}, **more}


async def text_at(caller: RawClient, uri: str) -> str:
    found: str = (await caller.request("resources/read", {"uri": uri})).result["contents"][0]["text"]
    return found


async def kind_of_refusal(caller: RawClient, method: str, params: dict[str, Any]) -> str:
    found: str = (await caller.request(method, params)).error["data"]["error_type"]
    return found


@pytest.mark.parametrize("stateless", [False, True])
async def test_a_link_is_read_from_its_server(stateless: bool) -> None:
    async with library("one") as one, library("two") as two, running_gateway(config(one, two)) as gateway:
        async with RawClient(gateway.url, stateless=stateless) as caller:
            unknown = {"uri": "https://shared.test/two/page"}
            assert await kind_of_refusal(caller, "resources/read", unknown) == "unknown_resource"
            assert one.count("resources/read") == two.count("resources/read") == 0
            await caller.call("two__link", {})
            assert await text_at(caller, "https://shared.test/two/page") == "two"
            assert await text_at(caller, "https://shared.test/part") == "two"
            # It belongs to the server that returned it last; a resource that was read may contain further links.
            await caller.call("one__link", {})
            assert await text_at(caller, "https://shared.test/part") == "one"
            assert await text_at(caller, "inner://one/1") == "one"


async def test_a_link_in_the_result_of_a_task_is_known_too() -> None:
    async with library("one") as one, library("two") as two, running_gateway(config(one, two)) as gateway:
        async with RawClient(gateway.url) as caller:
            made = await caller.call("two__link", {}, task={"ttl": 60000})
            await caller.request("tasks/result", {"taskId": made.result["task"]["taskId"]})
            assert await text_at(caller, "https://shared.test/two/page") == "two"


async def test_an_unlisted_uri_is_read_from_the_only_server_with_its_scheme() -> None:
    async with library("one") as one, library("two") as two, running_gateway(config(one, two)) as gateway:
        async with RawClient(gateway.url) as caller:
            assert await text_at(caller, "two://not/listed/anywhere") == "two"
            assert await text_at(caller, "one://item/5") == "one"
            assert await kind_of_refusal(caller, "resources/read", {"uri": "three://x"}) == "unknown_resource"
            assert two.count("resources/read") == 1


async def test_unlisted_prompts_and_completions_go_to_the_server_that_is_named() -> None:
    async with library("one") as one, library("two") as two, running_gateway(config(one, two)) as gateway:
        async with RawClient(gateway.url) as caller:
            got = (await caller.request("prompts/get", {"name": "two__secret"})).result
            assert got["messages"][0]["content"]["text"] == "two secret"
            for ref in (
                {"type": "ref/prompt", "name": "two__secret"},
                {"type": "ref/resource", "uri": "two://other/{x}"},
            ):
                asked = {"ref": ref, "argument": {"name": "x", "value": ""}}
                found = (await caller.request("completion/complete", asked)).result["completion"]
                assert found["values"] == ["two"]
            assert one.count("prompts/get") == one.count("completion/complete") == 0
            assert await kind_of_refusal(caller, "prompts/get", {"name": "secret"}) == "unknown_prompt"
            unknown = {"ref": {"type": "ref/resource", "uri": "x://{y}"}, "argument": {"name": "y", "value": ""}}
            refused = (await caller.request("completion/complete", unknown)).error
            assert (refused["data"]["error_type"], refused["data"]["legacy_code"]) == ("unknown_reference", -32021)


async def test_a_denied_entry_is_denied_under_every_name_and_link() -> None:
    rules = {"rules": [{"match": "prompt:secret", "action": "deny"}, {"match": "resource:https://*", "action": "deny"}]}
    async with library("one") as one, library("two") as two:
        async with running_gateway(config(one, two, governance=rules)) as gateway, RawClient(gateway.url) as caller:
            await caller.call("two__link", {})
            link = {"uri": "https://shared.test/two/page"}
            refused = (await caller.request("resources/read", link)).error
            assert "denied" in json.dumps(refused) or "unknown" in json.dumps(refused)
            for name in ("two__secret", "two__Secret", "two__secret "):
                assert "error" in (await caller.request("prompts/get", {"name": name})).reply
            assert two.count("prompts/get") == two.count("resources/read") == 0
