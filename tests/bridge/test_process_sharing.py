"""Servers run in their client's folder with its variables; clients in equivalent places share a process."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.bridge.bridge_setup import Client, children, configuration, end, gone, running_setup

from taskgate.assembly.channels import Outbound
from taskgate.assembly.places import Places
from taskgate.assembly.server_accounts import ServerAccounts
from taskgate.assembly.server_specs import server_specs
from taskgate.config.load import LoadedConfig, load
from taskgate.core.errors import Executed, UpstreamError
from taskgate.upstreams.places import PlaceMap

pytestmark = pytest.mark.timeout(300)
WHERE = {"command": sys.executable, "args": [str(Path(__file__).with_name("where_server.py"))]}


def accounts(loaded: LoadedConfig) -> ServerAccounts:
    return ServerAccounts(Outbound(), loaded, b"secret", lambda: "")


async def where(client: Client, server: str = "w") -> dict[str, Any]:
    client.call("where", f"{server}__where")
    data: dict[str, Any] = json.loads((await client.result("where"))["content"][0]["text"])
    return data


async def test_clients_in_equivalent_places_share_a_process(tmp_path: Path) -> None:
    servers = {"w": {**WHERE, "env": {"WHO": "${WHO:-nobody}"}}, "fixed": {**WHERE, "cwd": "."}}
    other = tmp_path / "project"
    other.mkdir()
    async with running_setup(tmp_path, configuration(servers=servers)) as made:
        here, also_here = await made.client(), await made.client()
        elsewhere = await made.client(cwd=other)
        person = await made.client(env={"WHO": "ann", "IRRELEVANT": "1"})
        first = await where(here)
        assert (first["folder"], first["who"]) == (str(tmp_path), "nobody")
        assert await where(also_here) == first
        there = await where(elsewhere)
        assert (there["folder"], there["who"]) == (str(other), "nobody")
        assert there["pid"] != first["pid"]
        hers = await where(person)
        assert (hers["folder"], hers["who"]) == (str(tmp_path), "ann")
        fixed = [(await where(client, "fixed"))["pid"] for client in (here, elsewhere, person)]
        assert len(set(fixed)) == 1, "what does not depend on the client is shared by all"
        pid = made.gateway()["pid"]
        assert len(children(pid, "where_server.py")) == 4, "three places of one server, and one process of the other"
        # After a crash the session of each client is restored.
        end(pid, signal.SIGKILL)
        await gone(pid)
        for client in (elsewhere, person, here):
            # A ping may be sent twice; a call that reaches the dying gateway's socket may not.
            client.ask("ping", "ping")
            await client.result("ping")
        assert (await where(elsewhere))["folder"] == str(other)
        assert (await where(person))["who"] == "ann"
        assert (await where(here))["folder"] == str(tmp_path)


async def test_variable_that_only_some_clients_have(tmp_path: Path) -> None:
    """The first client must not decide what the others get."""
    servers = {"w": {**WHERE, "env": {"WHO": "${TASKGATE_TEST_WHO}"}}, "x": WHERE}
    async with running_setup(tmp_path, configuration(servers=servers)) as made:
        thin = await made.client()
        thin.ask("tools", "tools/list")
        assert [tool["name"] for tool in (await thin.result("tools"))["tools"]] == ["x__where"]
        rich = await made.client(env={"TASKGATE_TEST_WHO": "bob"})
        assert (await where(rich))["who"] == "bob"
        thin.call("no", "w__where")
        refused = await thin.answer("no")
        assert "variable" in json.dumps(refused), refused
        assert (await where(thin, "x"))["folder"] == str(tmp_path)


async def test_digest_of_place_is_stable_across_restarts(tmp_path: Path) -> None:
    file = tmp_path / "taskgate.yaml"
    config = configuration(servers={"w": {**WHERE, "env": {"WHO": "${WHO:-}"}}})
    file.write_text(json.dumps(config))

    def places() -> Places:
        return Places(load(file, {}), lambda loaded: server_specs(loaded, accounts(loaded)), b"secret")

    one, later = places(), places()
    environment = {"HOME": "/h", "WHO": "ann", "NOISE": "1"}
    place = await one.enter("/a", environment)
    assert place == await later.enter("/a", {**environment, "NOISE": "2"})
    assert len({place, await one.enter("/b", environment), await one.enter("/a", {**environment, "WHO": "eve"})}) == 3
    assert "ann" not in place
    assert one.spec("w", place).cwd == "/a"
    with pytest.raises(UpstreamError) as caught:
        places().spec("w", place)
    assert (caught.value.error_type, caught.value.executed) == ("upstream_unreachable", Executed.NO)
    own = await one.enter(os.getcwd(), os.environ)
    assert one.spec("w", own).inherits is None, "a client that stands where we stand gets what we have"


async def test_equivalent_places_share_processes(tmp_path: Path) -> None:
    file = tmp_path / "taskgate.yaml"
    servers = {"w": {**WHERE, "env": {"WHO": "${WHO:-}"}}, "fixed": {**WHERE, "cwd": "/"}}
    file.write_text(json.dumps(configuration(servers=servers)))
    loaded = load(file, {})
    places = Places(loaded, lambda known: server_specs(known, accounts(known)), b"secret")
    ann = await places.enter("/a", {"HOME": "/h", "WHO": "ann"})
    eve = await places.enter("/a", {"HOME": "/h", "WHO": "eve"})
    specs = server_specs(loaded, accounts(loaded))
    depends, fixed = PlaceMap(specs["w"], places.spec), PlaceMap(specs["fixed"], places.spec)
    assert (depends.canonical(ann), depends.canonical(eve)) == (ann, eve)
    assert (fixed.canonical(ann), fixed.canonical(eve)) == (ann, ann)
    assert fixed.keep({eve}) == {"", ann}, "the process is still wanted by the other place"
    assert depends.keep({eve}) == {"", eve}
    assert depends.keep(()) == {""}
