"""The official suite's client scenarios, all that each revision requires, driven with our client library."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest
from tests.harness.absent import HOME
from tests.harness.programs import run_to_end

pytestmark = [pytest.mark.slow, pytest.mark.peers("conformance"), pytest.mark.timeout(200)]
SUITE = HOME / "conformance/node_modules/@modelcontextprotocol/conformance/dist/index.js"
PROGRAM = Path(__file__).with_name("client_under_test.py")
# The suite reports these too, but scores none of them: extensions of OAuth that this library does not speak.
NOT_OURS = ("auth-client-credentials", "auth-enterprise", "auth-dpop", "auth-wif")


@pytest.mark.parametrize(("revision", "required"), [("2025-11-25", 18), ("2026-07-28", 32)])
async def test_every_required_scenario_passes(revision: str, required: int) -> None:
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        asked = ["--command", f"{sys.executable} {PROGRAM}", "--requirements", revision, "--output-dir", folder]
        _, out, err = await run_to_end([HOME / "node", SUITE, "client", *asked], within=180)
        reports = {
            file.parent.relative_to(folder).as_posix(): json.loads(file.read_text())
            for file in Path(folder).rglob("checks.json")
        }
    ours = {name: checks for name, checks in reports.items() if not name.replace("/", "-").startswith(NOT_OURS)}
    bad = {
        name: [
            f"{check['id']}: {check.get('errorMessage')}"
            for check in checks
            if check["status"] in ("FAILURE", "WARNING")
        ]
        for name, checks in ours.items()
    }
    assert {name: found for name, found in bad.items() if found} == {}
    assert len(ours) >= required, (out + err)[-2000:]
    assert all(any(check["status"] == "SUCCESS" for check in checks) for checks in ours.values())
