"""Taskgate as a client of its upstreams, judged by the official client scenarios that apply to a gateway.

The scenarios about authorization wait for upstream authorization; the one about defaults in forms is for whoever shows
the form, which a gateway does not.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
from tests.conformance.suite import SUITE, failures, read_verdicts
from tests.harness.absent import HOME
from tests.harness.programs import run_to_end

pytestmark = [pytest.mark.slow, pytest.mark.peers("conformance"), pytest.mark.timeout(120)]
ROOT = Path(__file__).resolve().parent.parent.parent
PATH = ":".join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
SCENARIOS = (
    ("initialize", "2025-11-25"),
    ("tools_call", "2025-11-25"),
    ("sse-retry", "2025-11-25"),
    ("json-schema-2020-12-preservation", "2025-11-25"),
    ("tools_call", "2026-07-28"),
    ("request-metadata", "2026-07-28"),
    ("http-standard-headers", "2026-07-28"),
    ("http-custom-headers", "2026-07-28"),
    ("http-invalid-tool-headers", "2026-07-28"),
    ("json-schema-ref-no-deref", "2026-07-28"),
    ("json-schema-2020-12-preservation", "2026-07-28"),
    ("sep-2322-client-request-state", "2026-07-28"),
)


@pytest.mark.parametrize(("scenario", "revision"), SCENARIOS)
async def test_the_gateway_behaves_as_a_client_must(scenario: str, revision: str) -> None:
    command = f"{sys.executable} -m tests.conformance.drive_gateway"
    with tempfile.TemporaryDirectory(prefix="client-scenario-") as folder:
        words = ["client", "--command", command, "--scenario", scenario, "--spec-version", revision, "-o", folder]
        _, out, err = await run_to_end([HOME / "node", SUITE, *words], {"PYTHONPATH": PATH}, within=90)
        verdicts = read_verdicts(Path(folder))
    assert verdicts, f"the suite reported nothing:\n{(out + err)[-2000:]}"
    assert failures(verdicts) == {}
    assert any(verdict.status == "SUCCESS" for verdict in verdicts.values())
