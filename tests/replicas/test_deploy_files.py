"""The example files for several gateways, each checked by the program that would read it, and used with real gateways."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.harness.absent import find_program
from tests.harness.raw_client import RawClient
from tests.replicas.test_forwarding import SLOWLY, ask_and_answer
from tests.replicas.three_gateways import DEPLOY, Replicas, deployed, nginx_around, three_replicas
from tests.virtual_time import Gateway as SeamGateway
from tests.virtual_time import Upstream, virtual_time

DEADLINE_S = 60
pytestmark = [pytest.mark.xdist_group("deploy")]


@pytest.mark.peers("haproxy")
def test_haproxy_accepts_its_file() -> None:
    done = _run("haproxy", "-c", "-f", DEPLOY / "haproxy.cfg")
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.peers("nginx")
def test_nginx_accepts_its_file(tmp_path: Path) -> None:
    (tmp_path / "nginx.conf").write_text(nginx_around((DEPLOY / "nginx-replicas.conf").read_text(), tmp_path))
    done = _run("nginx", "-t", "-p", tmp_path, "-e", tmp_path / "errors", "-c", tmp_path / "nginx.conf")
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr


@pytest.mark.peers("systemd-analyze")
@pytest.mark.parametrize("unit, instance", [("taskgate.service", ""), ("taskgate@.service", "taskgate@7471.service")])
def test_systemd_accepts_the_units(tmp_path: Path, unit: str, instance: str) -> None:
    """The program that a unit starts must exist for this check, so it replaces /opt/taskgate."""
    text = (DEPLOY / unit).read_text().replace("/opt/taskgate/bin/taskgate", "/bin/true")
    (tmp_path / (instance or unit)).write_text(text)
    done = _run("systemd-analyze", "verify", "--man=no", tmp_path / (instance or unit))
    wrong = [line for line in done.stderr.splitlines() if (instance or unit) in line]
    assert not wrong, done.stderr


def _run(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(find_program(name)), *words], capture_output=True, text=True, timeout=DEADLINE_S)


def test_the_unit_of_several_gateways_starts_each_on_its_port_with_its_own_state() -> None:
    text = (DEPLOY / "taskgate@.service").read_text()
    for needed in ("--port %i", "StateDirectory=taskgate-%i", "TASKGATE_STATE_DIR=/var/lib/taskgate-%i"):
        assert needed in text


def test_the_unit_of_several_gateways_is_restarted_while_the_database_is_unavailable() -> None:
    """By default systemd gives a unit up that has ended five times within ten seconds, and a start without a database is short."""
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(DEPLOY / "taskgate@.service")
    assert unit["Service"]["Restart"] in ("on-failure", "always")
    assert unit["Unit"].get("StartLimitIntervalSec") == "0"


@virtual_time
async def test_the_check_in_haproxys_file_is_answered_by_a_gateway() -> None:
    """A check without a host, or with one that is not the gateway's, would take every gateway out of service."""
    found = re.search(
        r"http-check send meth (\S+) uri (\S+) ver \S+ hdr Host (\S+)", (DEPLOY / "haproxy.cfg").read_text()
    )
    assert found is not None
    async with SeamGateway({}, {"notes": Upstream()}) as gate:
        method, path, host = found.groups()
        assert (await gate.http(method, path, headers={"host": host}).done()).status == 200


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas() -> AsyncIterator[Replicas]:
    with tempfile.TemporaryDirectory(prefix="deployed-") as folder:
        async with three_replicas(Path(folder), tasks=SLOWLY) as found:
            yield found


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.peers(kind)) for kind in ("haproxy", "nginx")])
async def test_sessions_and_questions_pass_through_a_balancer_with_its_example_file(
    replicas: Replicas, kind: str, tmp_path: Path
) -> None:
    """Round robin without stickiness: requests of a session reach every gateway. A question comes in the middle of a call's event
    stream, and the call ends only when it was answered: a balancer that keeps events back would let it wait for ever."""
    async with deployed(kind, replicas.gateways, tmp_path) as url:
        calls = [f"{kind}-{number}" for number in range(6)]
        async with RawClient(url) as session:
            for call in calls[:3]:
                assert "result" in (await session.call("books__read", {"call": call})).reply
            for call in calls[3:]:
                async with RawClient(url, stateless=True) as caller:
                    assert "result" in (await caller.call("books__read", {"call": call})).reply
        assert [replicas.ledger.count(call) for call in calls] == [1] * 6
        for number in range(3):
            answer = await ask_and_answer(url, f"w{number}", url)
            assert f"w{number}" in json.dumps(answer["result"]), answer
