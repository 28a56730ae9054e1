"""The commands that match the console's pages, as an operator runs them against a gateway."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from tests.harness.gateway import Gateway, running_gateway
from tests.harness.programs import run_to_end

pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
SERVERS = {"demo": {"command": sys.executable, "args": ["-m", "taskgate.demo.files"]}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    config = {
        "schema": 1,
        "servers": SERVERS,
        "governance": {"record": {}, "rules": [{"match": "wipe_.*", "action": "deny"}]},
        "pins": "warn",
    }
    async with running_gateway(config, tmp_path_factory.mktemp("gateway")) as made:
        yield made


async def run(gateway: Gateway, *words: str) -> tuple[int, str, str]:
    env = {"TASKGATE_STATE_DIR": str(gateway.state)}
    return await run_to_end([sys.executable, "-m", "taskgate", *words], env, within=90)


async def until(gateway: Gateway, *words: str) -> str:
    """What a command prints once it prints something: calls are written down within a second, usage within ten."""
    async with asyncio.timeout(120):
        while True:
            code, out, err = await run(gateway, *words)
            assert code == 0, err
            if out.strip():
                return out
            await asyncio.sleep(0.5)


async def test_rules_in_force_are_listed_with_those_that_match_nothing(gateway: Gateway) -> None:
    async with asyncio.timeout(120):
        while True:
            code, out, err = await run(gateway, "policy", "rules")
            assert code == 0, err
            if "matches none of" in err:
                break
            await asyncio.sleep(0.5)
    assert "wipe_.*" in out
    assert "everything else" in out
    assert "warning: rules[0] `wipe_.*` matches none of" in err
    code, out, _ = await run(gateway, "policy", "rules", "--json")
    (row,) = json.loads(out)["unmatched"]
    assert (code, row["pattern"], row["instead"]) == (0, "wipe_.*", [])


async def test_a_changed_file_is_rehearsed_with_recorded_calls(gateway: Gateway, tmp_path: Path) -> None:
    code, _, err = await run(gateway, "call", "demo__read_file", '{"path": "notes.txt"}')
    assert code in (0, 1), err
    new = tmp_path / "new.yaml"
    rules = [{"match": "read_file", "action": "deny"}]
    new.write_text(
        yaml.safe_dump({"schema": 1, "profile": "production", "servers": SERVERS, "governance": {"rules": rules}})
    )
    out = await until(gateway, "policy", "rehearse", "--since", "1d", str(new))
    assert "1 calls: 1 would change, 0 are undecided." in out
    assert "demo:read_file: forward -> deny" in out
    code, out, _ = await run(gateway, "policy", "rehearse", str(new), "--json", "--fail-on-change")
    assert (code, json.loads(out)["changed"]) == (1, 1)
    code, _, err = await run(gateway, "policy", "rehearse", "--since", "soon", str(new))
    assert (code, "7d" in err) == (2, True)


async def test_usage_is_printed_as_a_table_as_lines_and_as_csv(gateway: Gateway) -> None:
    await run(gateway, "call", "demo__read_file", '{"path": "notes.txt"}')
    assert "read_file" in await until(gateway, "usage")
    (row, *_) = map(json.loads, (await until(gateway, "usage", "--by", "server", "--json")).splitlines())
    assert (row["server"], row["calls"] >= 1) == ("demo", True)
    assert (await until(gateway, "usage", "--csv")).startswith('"day","principal","tenant","server","tool","calls"')
    code, _, err = await run(gateway, "usage", "--by", "colour")
    assert (code, "principal" in err) == (2, True)


async def test_accepted_definitions_of_a_tool_are_listed(gateway: Gateway) -> None:
    (row, *_) = map(json.loads, (await until(gateway, "pins", "history", "demo:read_file", "--json")).splitlines())
    assert (row["by"], row["changes"]) == ("", None)
    assert row["digest"] in await until(gateway, "pins", "history", "demo:read_file")
    code, out, _ = await run(gateway, "pins", "history", "demo:unknown", "--json")
    assert (code, out.strip()) == (0, "")


async def test_personal_data_is_exported_and_erased_after_confirmation(gateway: Gateway) -> None:
    await run(gateway, "call", "demo__read_file", '{"path": "notes.txt"}')
    mine = ("--principal", "operator")
    kinds: set[str] = set()
    async with asyncio.timeout(120):
        while "usage" not in kinds:
            exported = await until(gateway, "data", "export", *mine, "--json")
            kinds = {json.loads(line)["kind"] for line in exported.splitlines()}
            if "usage" not in kinds:
                await asyncio.sleep(0.5)
    code, _, err = await run(gateway, "data", "erase", *mine)
    assert (code, "--yes" in err) == (2, True)
    code, out, err = await run(gateway, "data", "erase", *mine, "--yes", "--json")
    assert (code, json.loads(out)["principal"]) == (0, "operator"), err
    code, _, err = await run(gateway, "data", "erase", "--principal", "ghost", "--yes")
    assert (code, err) == (0, "Erased: nothing was stored.\n")
    code, _, err = await run(gateway, "data", "export", "--principal", "anonymous")
    assert code == 2, err


async def test_servers_are_listed_shown_drained_and_enabled(gateway: Gateway) -> None:
    code, out, _ = await run(gateway, "servers", "status")
    assert (code, out.startswith("demo  ")) == (0, True)
    code, out, _ = await run(gateway, "servers", "drain", "demo")
    assert (code, out) == (0, "demo is drained.\n")
    code, out, _ = await run(gateway, "servers", "show", "demo", "--json")
    assert json.loads(out)["drained"] is True
    code, out, _ = await run(gateway, "servers", "enable", "demo")
    assert (code, out) == (0, "demo is enabled.\n")
    code, _, err = await run(gateway, "servers", "reconnect", "nobody")
    assert code == 8, err


async def test_the_log_is_searched_and_the_configuration_read_again(gateway: Gateway) -> None:
    code, out, _ = await run(gateway, "reload")
    assert (code, out) == (0, "Configuration reloaded.\n")
    code, out, _ = await run(gateway, "audit", "search", "--event", "configuration_reloaded", "--json")
    assert [json.loads(line)["principal"] for line in out.splitlines()] == ["operator"]
    code, out, _ = await run(gateway, "audit", "search", "--text", "RELOADED")
    assert "configuration_reloaded  operator" in out
    code, _, err = await run(gateway, "audit", "search", "--caller", "nobody")
    assert (code, "No matching rows" in err) == (0, True)
    found = [await run(gateway, "audit", "search", "--text", "RELOADED", "--until", until) for until in ("0s", "1h")]
    assert ["configuration_reloaded" in out for _, out, _ in found] == [True, False]
