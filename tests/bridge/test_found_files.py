"""A client that starts `taskgate stdio` in a folder: the file there is used after consent, and within it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from tests.bridge.bridge_setup import MIRROR, WAIT_S, Setup, configuration, gone, mirror, running_setup

pytestmark = pytest.mark.timeout(300)


class Found(Setup):
    """A setup whose clients give no configuration file, and whose user has a home of their own."""

    def command_line(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "taskgate", "stdio", *more]


def found(made: Setup) -> Found:
    home = made.folder / "home"
    home.mkdir(exist_ok=True)
    return Found(made.folder, made.runtime, {"HOME": str(home), "XDG_CONFIG_HOME": str(home)}, made.clients)


async def until(made: Setup, text: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while text not in made.log():
            await asyncio.sleep(0.05)


async def test_found_file_is_used_after_consent_and_a_reload_stays_within_it(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    added = {"command": "sh", "args": ["-c", f"touch {ran}; exec {sys.executable} {MIRROR} stdio"]}
    async with running_setup(tmp_path, configuration(servers={"a": mirror()})) as setup:
        made = found(setup)
        refused = await made.client(opened=False)
        refused.ask(1, "initialize")
        answer = await refused.answer(1)
        assert (answer["error"]["data"]["error_type"], answer["error"]["data"]["executed"]) == (
            "gateway_unreachable",
            "no",
        )
        assert f"taskgate allow {made.config}" in answer["error"]["message"]
        assert await refused.disconnect() == 2
        assert made.records() == []

        assert (await made.command("allow"))[0] == 0
        client = await made.client()
        client.ask(1, "tools/list")
        assert (await client.result(1))["tools"]
        record = made.gateway()

        made.write(configuration(servers={"a": mirror(), "b": added}))
        await until(made, "configuration not reloaded")
        code, out, _ = await made.command("reload", "--json")
        assert code == 2
        assert "taskgate allow" in json.loads(out)["error"]
        client.call(2, "b__mirror", value=1)
        assert "error" in await client.answer(2)
        assert not ran.exists()

        await client.disconnect()
        assert (await made.command("stop"))[0] == 0
        await gone(record["pid"])
        second = await made.client(opened=False)
        second.ask(1, "initialize")
        assert "servers.b" in (await second.answer(1))["error"]["message"]
        assert await second.disconnect() == 2
        assert not ran.exists()


async def test_consent_that_is_given_later_is_applied_by_the_running_gateway(tmp_path: Path) -> None:
    async with running_setup(tmp_path, configuration(servers={"a": mirror()})) as setup:
        made = found(setup)
        assert (await made.command("allow"))[0] == 0
        client = await made.client()
        made.write(configuration(servers={"a": mirror(), "b": mirror(env={"OTHER": "1"})}))
        await until(made, "configuration not reloaded")
        assert (await made.command("allow", "taskgate.yaml", "--json"))[0] == 0
        await until(made, "configuration reloaded")
        client.call(2, "b__mirror", value=1)
        assert (await client.result(2))["vendor/extra"] == 1


async def test_user_file_is_used_in_a_folder_whose_file_is_not_allowed(tmp_path: Path) -> None:
    async with running_setup(tmp_path, configuration(servers={"a": mirror()})) as setup:
        made = found(setup)
        own = tmp_path / "home" / "taskgate" / "taskgate.yaml"
        own.parent.mkdir()
        own.write_text(made.config.read_text().replace("  a:", "  mine:", 1))
        made.write(configuration(servers={"a": {"command": "sh", "args": ["-c", f"touch {tmp_path}/ran"]}}))
        client = await made.client()
        client.call(1, "mine__mirror", value=1)
        assert (await client.result(1))["vendor/extra"] == 1
        assert made.gateway()["config"] == str(own)
        assert not (tmp_path / "ran").exists()
        assert "taskgate allow" in (tmp_path / "bridges.log").read_text()


@pytest.mark.fresh_interpreter
@pytest.mark.parametrize("alone", [False, True])
async def test_modules_in_the_folder_of_a_client_are_not_run(tmp_path: Path, alone: bool) -> None:
    """`python -m` looks into the working folder first; the gateway and the demo server are started without that."""
    ran = tmp_path / "ran"
    async with running_setup(tmp_path, configuration(servers={})) as setup:
        made = found(setup)
        made.config.unlink()
        for name in (
            "json",
            "asyncio",
            "sitecustomize",
            "taskgate/__init__",
            "taskgate/__main__",
            "taskgate/demo/files",
        ):
            module = made.config.parent / f"{name}.py"
            module.parent.mkdir(parents=True, exist_ok=True)
            module.write_text(f"open({str(ran)!r}, 'a').write({name!r})\n")
        program = [sys.executable, "-P", "-m", "taskgate", "stdio", *(["--alone"] if alone else [])]
        made.command_line = lambda *_: program
        client = await made.client()
        client.call(1, "demo__list_files")
        assert not (await client.result(1)).get("isError")
        assert not ran.exists()
