"""The official suite's client scenarios, driven with our client library.

The `auth/*` scenarios are left out: they need OAuth, which the library leaves to its caller (`token=`, `headers=`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest
from tests.harness.absent import HOME
from tests.harness.programs import run_to_end

pytestmark = [pytest.mark.peers("conformance"), pytest.mark.timeout(90)]
SUITE = HOME / "conformance/node_modules/@modelcontextprotocol/conformance/dist/index.js"
PROGRAM = Path(__file__).with_name("client_under_test.py")
SCENARIOS = {
    "2025-11-25": [
        "initialize",
        "tools_call",
        "elicitation-sep1034-client-defaults",
        "sse-retry",
        "json-schema-2020-12-preservation",
    ],
    "2026-07-28": [
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
    ],
}


@pytest.mark.parametrize("revision", SCENARIOS)
async def test_every_scenario_without_oauth_passes(revision: str) -> None:
    bad: dict[str, list[str]] = {}
    for scenario in SCENARIOS[revision]:
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            program = f"{sys.executable} {PROGRAM}"
            asked = ["--command", program, "--scenario", scenario, "--spec-version", revision, "--output-dir", folder]
            _, out, err = await run_to_end([HOME / "node", SUITE, "client", *asked], within=60)
            checks = [check for file in Path(folder).glob("*/checks.json") for check in json.loads(file.read_text())]
        if not any(check["status"] == "SUCCESS" for check in checks):
            bad[scenario] = ["no check succeeded", (out + err)[-1000:]]
        found = [f"{c['id']}: {c.get('errorMessage')}" for c in checks if c["status"] in ("FAILURE", "WARNING")]
        if found:
            bad[scenario] = found
    assert bad == {}
