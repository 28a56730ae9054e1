"""The example files for several gateways, each checked by the program that would read it, where that program is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DEADLINE_S = 60


def program(name: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/bin")
    if found is None:
        pytest.skip(f"{name} is not installed here: apt-get install {name}")
    return found


def test_haproxy_accepts_its_file() -> None:
    said = subprocess.run(
        [program("haproxy"), "-c", "-f", DEPLOY / "haproxy.cfg"], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert said.returncode == 0, said.stderr
    assert "WARNING" not in said.stderr


def test_nginx_accepts_its_file(tmp_path: Path) -> None:
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {tmp_path}/body; proxy_temp_path {tmp_path}/proxy; "
        f"fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s; "
        f"include {DEPLOY}/nginx-replicas.conf; }}\n"
    )
    words = [program("nginx"), "-t", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    said = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S)
    assert said.returncode == 0, said.stderr


@pytest.mark.parametrize("unit, instance", [("taskgate.service", ""), ("taskgate@.service", "taskgate@7471.service")])
def test_systemd_accepts_the_units(tmp_path: Path, unit: str, instance: str) -> None:
    """The program that a unit starts must exist for this check, so it stands in for /opt/taskgate."""
    text = (DEPLOY / unit).read_text().replace("/opt/taskgate/bin/taskgate", "/bin/true")
    (tmp_path / (instance or unit)).write_text(text)
    words = [program("systemd-analyze"), "verify", "--man=no", str(tmp_path / (instance or unit))]
    said = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S)
    wrong = [line for line in said.stderr.splitlines() if (instance or unit) in line]
    assert not wrong, said.stderr


def test_the_unit_of_several_gateways_starts_each_on_its_port_with_its_own_state() -> None:
    text = (DEPLOY / "taskgate@.service").read_text()
    for needed in ("--port %i", "StateDirectory=taskgate-%i", "TASKGATE_STATE_DIR=/var/lib/taskgate-%i"):
        assert needed in text
