"""Secrets in the environment and arguments of a stdio server are redacted from its output."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.harness.gateway import running_gateway
from tests.harness.raw_client import RawClient

from taskgate.cli.root import build_app
from taskgate.core.redaction.fields import HIDDEN

PROGRAM = """
import json, os, sys
secret, given = os.environ["SERVICE_TOKEN"], sys.argv[2]
print("started with", secret, given, file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, reply = message["method"], {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize" and "--broken" not in sys.argv:
        info = {"name": "p", "version": "1"}
        reply["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "logging": {}}, "serverInfo": info}
    elif method == "tools/list":
        reply["result"] = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("error", "failed")]}
    elif method == "tools/call" and message["params"]["name"] == "failed":
        news = {"level": "error", "data": "using " + secret}
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": news}), flush=True)
        reply["result"] = {"content": [{"type": "text", "text": f"{secret} {given}"}], "isError": True}
    else:
        reply["error"] = {"code": -32000, "message": f"{secret} {given}"}
    print(json.dumps(reply), flush=True)
"""
VALUES = ("env-secret-0123456789", "arg-secret-0123456789")


def program(folder: Path, *more: str) -> dict[str, Any]:
    (folder / "leaky.py").write_text(PROGRAM)
    args = [str(folder / "leaky.py"), "--password", VALUES[1], *more]
    return {"command": sys.executable, "args": args, "env": {"SERVICE_TOKEN": VALUES[0]}}


def assert_clean(expected_text: str) -> None:
    assert [value for value in VALUES if value in expected_text] == []


async def test_environment_and_arguments_are_redacted(tmp_path: Path) -> None:
    scopes = {"default": {"default_servers": ["*"], "mode": "both"}}
    async with running_gateway({"schema": 1, "servers": {"p": program(tmp_path)}, "scopes": scopes}) as gateway:
        async with RawClient(gateway.url) as caller:
            error = (await caller.call("p__error", {})).error
            assert error["message"] == f"{HIDDEN} {HIDDEN}"
            failed = await caller.call("p__failed", {})
            assert failed.result["content"][0]["text"] == f"{HIDDEN} {HIDDEN}"
            logs = await caller.call("get_logs", {})
            assert_clean(json.dumps(logs.result))
            assert f"started with {HIDDEN} {HIDDEN}" in json.dumps(logs.result)
            assert_clean(gateway.log)


def test_doctor_redacts_program_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKGATE_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "taskgate.yaml"
    file.write_text(json.dumps({"servers": {"p": {**program(tmp_path, "--broken"), "generation": "2025-11-25"}}}))
    for form in ([], ["--json"]):
        reply = CliRunner().invoke(build_app(), ["doctor", "-c", str(file), *form])
        assert "started with" in reply.output
        assert HIDDEN in reply.output
        assert_clean(reply.output + reply.stderr)
