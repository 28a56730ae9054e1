"""The user's local gateway: started once, shared by all clients, ended when idle, replaced when it dies."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import stat
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.bridge.bridge_setup import WAIT_S, Client, alive, children, configuration, end, gone, mirror, running_setup
from tests.harness.narrow import present
from tests.harness.plain_http import NO_TLS
from tests.harness.programs import free_port

from taskgate.bridge import handshake
from taskgate.folders import gateway_key

pytestmark = pytest.mark.timeout(300)


async def mirrored(client: Client, request_id: object, value: object, server: str = "a") -> object:
    client.call(request_id, f"{server}__mirror", value=value)
    return (await client.result(request_id))["vendor/extra"]


async def test_ten_clients_at_once_start_one_gateway(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as made:
        clients = await asyncio.gather(*(made.client() for _ in range(10)))
        assert await asyncio.gather(*(mirrored(client, 1, n) for n, client in enumerate(clients))) == list(range(10))
        record = made.gateway()
        assert record["kind"] == "on-demand"
        assert made.log().count('"event": "session opened"') == 10
        assert len(children(record["pid"], "mirror_server.py")) == 2, "and one process for each of the two servers"
        for client in clients:
            assert await client.disconnect() == 0
        assert alive(record["pid"]), "it outlives its clients for a while"


async def test_socket_and_folders_are_private(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as made:
        await made.client()
        path = Path(made.gateway()["address"].removeprefix("unix:"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE((made.state / "run").stat().st_mode) == 0o700
        if os.getuid() == 0:
            # Even if the permissions of a folder are too wide, the gateway checks the peer's user with the kernel.
            for folder, mode in ((made.runtime, 0o755), (path.parent, 0o755), (path, 0o666)):
                os.chmod(folder, mode)
            code = (
                f"import os, socket; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r});"
                "s.settimeout(60); print(s.recv(10))"
            )
            other = await asyncio.create_subprocess_exec(
                sys.executable, "-Ic", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            out, _ = await asyncio.wait_for(other.communicate(), WAIT_S)
            assert b"b''" in out or b"ConnectionResetError" in out, out
            assert "bridge of another user rejected" in made.log()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
async def test_every_request_is_answered_when_gateway_crashes(tmp_path: Path, sign: signal.Signals) -> None:
    async with running_setup(tmp_path, configuration(limits={"drain_timeout": "1s"})) as made:
        client = await made.client()
        assert await mirrored(client, 1, "before") == "before"
        first = made.gateway()["pid"]
        client.call("long", "a__sleep", value=600)
        assert await mirrored(client, 2, "beside", "b") == "beside"
        end(first, sign)
        error = (await client.answer("long"))["error"]
        assert (error["data"]["error_type"], error["data"]["executed"]) == ("outcome_unknown", "maybe")
        await gone(first)
        assert await mirrored(client, 3, "after") == "after"
        assert made.gateway()["pid"] != first
        assert await client.disconnect() == 0


async def test_every_request_of_burst_is_answered_when_gateway_is_killed_in_it(tmp_path: Path) -> None:
    """Lines are on their way in every setup: in the client's pipe, in the bridge, in the socket, and in the gateway."""
    count, record = 6000, tmp_path / "executed"
    async with running_setup(tmp_path, configuration(servers={"a": mirror(("--record", str(record)))})) as made:
        client = await made.client()
        assert await mirrored(client, "before", 1) == 1
        assert client.process.stdout is not None
        assert client.process.stdin is not None

        async def write() -> None:
            for number in range(count):
                client.ask(
                    number, "ping" if number % 3 else "tools/call", name="a__mirror", arguments={"value": number}
                )
                if number % 200 == 199:
                    await present(client.process.stdin).drain()

        writing = asyncio.create_task(write())
        received: dict[int, dict[str, Any]] = {}
        async with asyncio.timeout(WAIT_S * 2):
            while len(received) < count:
                line = await client.process.stdout.readline()
                assert line, "the bridge ended"
                message = json.loads(line)
                assert message["id"] not in received, "answered twice"
                received[message["id"]] = message
                if len(received) in (count // 10, count // 2):
                    end(made.gateway()["pid"], signal.SIGKILL)
        await writing
        assert await mirrored(client, "after", 2) == 2
        executed = Counter(json.loads(line) for line in record.read_text().splitlines())
        assert set(executed.values()) == {1}, "executed twice"
        for number, message in received.items():
            data = message.get("error", {}).get("data")
            if data is None:
                assert number % 3 or number in executed
            elif data["executed"] == "maybe":
                assert (data["error_type"], number % 3) == ("outcome_unknown", 0), message
            else:
                # A ping that two gateways died with, or a line that no gateway got: how many depends on when they died.
                assert (data["error_type"], data["executed"]) == ("gateway_unreachable", "no"), message
                assert number % 3 or number not in executed, message


@pytest.mark.parametrize("lost", ["state", "state/run"])
async def test_gateway_ends_when_state_folder_is_removed(tmp_path: Path, lost: str) -> None:
    """The next gateway may be there before the first one has ended: its record, socket and lock stay."""
    async with running_setup(tmp_path) as made:
        client = await made.client()
        assert await mirrored(client, 1, "before") == "before"
        first = made.gateway()["pid"]
        shutil.rmtree(tmp_path / lost)
        other = await made.client()
        await gone(first)
        assert await mirrored(other, 1, "other") == "other"
        assert await mirrored(client, 2, "after") == "after"
        second = made.gateway()
        assert second["pid"] != first
        assert Path(second["address"].removeprefix("unix:")).exists()
        assert await mirrored(await made.client(), 1, "found") == "found"
        assert made.gateway()["pid"] == second["pid"], "one gateway serves all"


async def test_idle_gateway_ends_and_restarts_on_demand(tmp_path: Path) -> None:
    async with running_setup(tmp_path, configuration(local={"end_after": "1s"})) as made:
        client = await made.client()
        first = made.gateway()["pid"]
        await client.disconnect()
        await gone(first)
        assert made.records() == []
        assert "gateway is idle and stops" in made.log()
        again = await made.client()
        assert await mirrored(again, 1, "back") == "back"


async def test_held_call_keeps_gateway_running_and_is_visible_to_clients(tmp_path: Path) -> None:
    rules = {"rules": [{"match": "mirror", "action": "approve"}]}
    config = configuration(governance=rules, local={"end_after": "1s"}, tasks={"execute_on": "approval"})
    async with running_setup(tmp_path, config) as made:
        one = await made.client()
        one.ask("held", "tools/call", name="a__mirror", arguments={"value": 7}, task={"ttl": 600_000})
        task_id = (await one.result("held"))["task"]["taskId"]
        await one.disconnect()
        # Another client comes after the first one is gone, and the call still waits.
        other = await made.client()
        url = made.gateway()["url"]
        code, out, err = await made.command("approvals", "list", "--json", "--gateway", url)
        assert code == 0, err
        assert "mirror" in out
        approval = out.split('"id": "')[1].split('"')[0]
        code, _, err = await made.command("approvals", "approve", approval, "--gateway", url)
        assert code == 0, err
        other.ask("r", "tasks/result", taskId=task_id)
        assert (await other.result("r"))["vendor/extra"] == 7


async def test_serve_replaces_gateway_started_on_demand(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as made:
        client = await made.client()
        first = made.gateway()["pid"]
        serving = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "taskgate", "serve", "-c", str(made.config), "--port", str(free_port())),
            env=made.environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert serving.stdout is not None
        try:
            assert b"Taskgate is serving" in await asyncio.wait_for(serving.stdout.readline(), WAIT_S)
            assert made.gateway() | {"pid": serving.pid, "kind": "serve"} == made.gateway()
            await gone(first)
            assert await mirrored(client, 1, "moved") == "moved"
        finally:
            serving.terminate()
            await asyncio.wait_for(serving.wait(), WAIT_S)


async def test_newer_bridge_replaces_older_gateway_without_other_clients(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as made:
        client = await made.client()
        first = made.gateway()
        assert b'"serves": true' in await hello(first, "99.0.0")
        await client.disconnect()
        async with asyncio.timeout(WAIT_S):
            while b'"replaced": true' not in (text := await hello(first, "99.0.0")):
                assert b'"serves": true' in text
        await gone(first["pid"])
        assert await mirrored(await made.client(), 1, "new") == "new"
        second = made.gateway()
        assert b'"serves": true' in await hello(second, "0.0.1"), "an older bridge is served by a newer gateway"


async def hello(record: dict[str, str], version: str) -> bytes:
    """What a gateway answers to a bridge of some version."""

    def greet() -> bytes:
        with socket.socket(socket.AF_UNIX) as made:
            made.settimeout(WAIT_S)
            made.connect(record["address"].removeprefix("unix:"))
            made.sendall(handshake.hello(version, None, "/", {}))
            return made.recv(65536)

    return await asyncio.to_thread(greet)


async def test_start_failure_is_reported_on_stderr_and_to_client(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as made:
        made.config.write_text("schema: 1\nserverz: {}\n")
        client = await made.client(opened=False)
        client.ask(1, "initialize")
        error = (await client.answer(1))["error"]
        assert "serverz" in error["message"]
        assert error["data"]["executed"] == "no"
        assert await asyncio.wait_for(client.process.wait(), WAIT_S) == 2
        assert "serverz" in (tmp_path / "bridges.log").read_text()


async def test_unknown_scope_is_rejected_with_existing_scopes(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as made:
        client = await made.client("--scope", "defualt", opened=False)
        assert await asyncio.wait_for(client.process.wait(), WAIT_S) == 2
        assert "Did you mean 'default'?" in (tmp_path / "bridges.log").read_text()


async def test_standalone_stdio_gateway_has_its_own_inbox(tmp_path: Path) -> None:
    config = configuration(governance={"rules": [{"match": "mirror", "action": "approve"}]})
    async with running_setup(tmp_path, config) as made:
        client = await made.client("--alone")
        client.ask("held", "tools/call", name="a__mirror", arguments={"value": 7}, task={})
        await client.result("held")
        log = (tmp_path / "bridges.log").read_text()
        url = log.split("Approvals and questions: ")[1].split(" ")[0]
        code, out, err = await made.command("approvals", "list", "--gateway", url)
        assert code == 0, err
        assert "mirror" in out
        assert await client.disconnect() == 0
        assert not (made.state / "run").exists() or made.records() == []


async def test_port_of_local_gateway_requires_token(tmp_path: Path) -> None:
    async with running_setup(tmp_path) as made:
        await made.client()
        url = f"{made.gateway()['url']}/mcp"
        async with httpx2.AsyncClient(timeout=WAIT_S, verify=NO_TLS) as http:
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            unauthorized = await http.post(url, json=ping)
            operator = {"authorization": f"Bearer {(made.state / 'operator-token').read_text().strip()}"}
            known = await http.post(url, json=ping, headers=operator)
        assert unauthorized.status_code == 401
        assert known.status_code != 401


async def test_loopback_port_with_key_replaces_unix_socket(tmp_path: Path) -> None:
    """A folder has the name of the socket, so the socket cannot be created: clients read the port and the key, which other
    users cannot."""
    rules = {"rules": [{"match": "mirror", "action": "approve"}]}
    async with running_setup(tmp_path, configuration(governance=rules, tasks={"execute_on": "approval"})) as made:
        key = gateway_key(str(made.state), str(made.config))
        (made.runtime / "taskgate").mkdir(mode=0o700, exist_ok=True)
        (made.runtime / "taskgate" / f"{key}.sock").mkdir()
        one, two = [await made.client() for _ in range(2)]
        record = made.gateway()
        assert record["address"].startswith("tcp:127.0.0.1:")
        assert len(record["key"]) > 30
        assert stat.S_IMODE(os.stat(made.state / "run" / f"{key}.json").st_mode) == 0o600
        assert await greeted(record["address"], "a guess") == {}
        one.ask("held", "tools/call", name="a__mirror", arguments={"value": 7}, task={"ttl": 600_000})
        task_id = (await one.result("held"))["task"]["taskId"]
        await approve_on_the_page(record["url"], (made.state / "operator-token").read_text().strip())
        two.ask("r", "tasks/result", taskId=task_id)
        assert (await two.result("r"))["vendor/extra"] == 7


async def greeted(address: str, key: str) -> dict[str, object]:
    """The reply to a bridge with this key; empty if the connection is closed."""
    host, _, port = address.removeprefix("tcp:").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(handshake.hello("0.1.0", None, "", {}, key))
    try:
        line = await asyncio.wait_for(reader.readline(), WAIT_S)
    finally:
        writer.close()
    return dict(json.loads(line)) if line else {}


async def approve_on_the_page(url: str, token: str) -> None:
    """Approve as a person does in a browser: log in, open the card, approve."""
    async with httpx2.AsyncClient(verify=NO_TLS, timeout=WAIT_S) as http:
        page = await http.get(f"{url}/login")
        await http.post(f"{url}/login", data={"form_token": hidden(page.text, "form_token"), "token": token})
        listed = await http.get(f"{url}/approvals")
        (approval_id,) = set(re.findall(r"/approvals/(ap_[0-9A-Za-z]+)", listed.text))
        card = await http.get(f"{url}/approvals/{approval_id}")
        form = {name: hidden(card.text, name) for name in ("form_token", "digest")}
        done = await http.post(f"{url}/approvals/{approval_id}/approve", data=form)
        assert done.status_code in (200, 303), done.text


def hidden(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]
