"""The official suite's client scenarios, all that each revision requires, driven with our client library."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.harness.absent import HOME
from tests.harness.programs import run_to_end

pytestmark = [pytest.mark.peers("conformance"), pytest.mark.timeout(400)]
SUITE = HOME / "conformance/node_modules/@modelcontextprotocol/conformance/dist/index.js"
PROGRAM = Path(__file__).with_name("client_under_test.py")
# Reported but not scored by the suite.
ALSO = ["json-schema-2020-12-preservation"]


REVISIONS = pytest.mark.parametrize(("revision", "required"), [("2025-11-25", 18), ("2026-07-28", 32)])
QUICK_LOGINS = ("auth/metadata-default", "auth/scope-step-up", "auth/iss-wrong-issuer")


@pytest.mark.long
@REVISIONS
async def test_every_required_scenario_passes(revision: str, required: int) -> None:
    scenarios = await required_scenarios(revision)
    assert len(scenarios) == required
    assert await disliked_in(scenarios + ALSO, revision) == {}


@pytest.mark.slow
@REVISIONS
async def test_the_scenarios_without_a_login_and_some_with_one_pass(revision: str, required: int) -> None:
    scenarios = await required_scenarios(revision)
    chosen = [name for name in scenarios if not name.startswith("auth/") or name in QUICK_LOGINS]
    assert await disliked_in(chosen + ALSO, revision) == {}


async def disliked_in(scenarios: list[str], revision: str) -> dict[str, list[str]]:
    two_at_once = asyncio.Semaphore(2)
    found = await asyncio.gather(*(complaints(name, revision, two_at_once) for name in scenarios))
    return {name: said for name, said in found if said}


async def required_scenarios(revision: str) -> list[str]:
    _, out, _ = await run_to_end([HOME / "node", SUITE, "list", "--requirements", revision])
    client = out.partition("Client scenarios")[2].partition("Run and reported")[0]
    return re.findall(r"^  - (\S+)", client, re.MULTILINE)


async def complaints(scenario: str, revision: str, turn: asyncio.Semaphore) -> tuple[str, list[str]]:
    """What the suite did not like about us in one scenario; a scenario without any success counts as disliked."""
    async with turn:
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            program = f"{sys.executable} {PROGRAM}"
            asked = ["--command", program, "--scenario", scenario, "--spec-version", revision, "--output-dir", folder]
            _, out, err = await run_to_end([HOME / "node", SUITE, "client", *asked], within=60)
            checks: list[dict[str, Any]] = []
            for file in Path(folder).rglob("checks.json"):
                checks += json.loads(file.read_text())
    if not any(check["status"] == "SUCCESS" for check in checks):
        return scenario, [(out + err)[-1000:]]
    disliked = [check for check in checks if check["status"] in ("FAILURE", "WARNING")]
    return scenario, [f"{check['id']}: {check.get('errorMessage') or check['description']}" for check in disliked]
