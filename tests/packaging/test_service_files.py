"""The files for running Taskgate as a service match docs/getting-it.md."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from taskgate.config.load import load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def test_the_container_has_its_own_user_and_a_health_check() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    last_stage = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM")) :]
    assert "USER 10001" in last_stage
    assert any("/readyz" in line for line in last_stage)
    assert last_stage.index("USER 10001") < next(
        n for n, line in enumerate(last_stage) if line.startswith("ENTRYPOINT")
    )


def test_image_has_the_postgresql_driver_at_the_locked_versions() -> None:
    """Kubernetes and compose run gateways on PostgreSQL. The image is installed without resolving dependencies."""
    locks = {name: pins(name) for name in ("runtime", "container", "dev")}
    assert "-r /source/requirements/container.txt" in (DEPLOY / "Containerfile").read_text()
    assert locks["container"].keys() - locks["runtime"].keys() == {"psycopg", "psycopg-binary", "tzdata"}
    assert locks["runtime"].items() <= locks["container"].items()
    assert all(locks["dev"][name] == version for name, version in locks["container"].items() if name in locks["dev"])


def pins(name: str) -> dict[str, str]:
    text = (DEPLOY.parent / "requirements" / f"{name}.txt").read_text()
    return dict(re.findall(r"(?m)^([a-z0-9][\w.-]*)==(\S+)", text))


def test_compose_mounts_the_configuration_and_publishes_on_loopback_only() -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["taskgate"]
    command = (DEPLOY / "Containerfile").read_text()
    inside = [volume.split(":")[1] for volume in service["volumes"]]
    assert all(path in command for path in inside)
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


def test_compose_with_metrics_uses_the_files_of_this_folder() -> None:
    composed = yaml.safe_load((DEPLOY / "compose.observability.yaml").read_text())
    services = composed["services"]
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith("./") else source in composed["volumes"], volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    gateways = [name for name in services if name.startswith("taskgate-")]
    scraped = yaml.safe_load((DEPLOY / "observability/prometheus.yaml").read_text())["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == [f"{name}:7467" for name in gateways]
    environment = {
        "STORE_URL": "postgresql://a@b/c",
        "SCRAPE_TOKEN_SHA256": "ab" * 32,
        "HOSTNAME": gateways[0],
        "HOME": "/",
        "TASKGATE_STATE_DIR": "/state",
    }
    root = load(DEPLOY / "observability/taskgate.yaml", environment).root
    assert list(root.allowed_hosts) == gateways
    (scrapes,) = root.tokens
    assert (list(scrapes.roles), scrapes.may_call) == (["viewer"], False)
    secret = scraped["authorization"]["credentials_file"].removeprefix("/run/secrets/")
    assert secret in services["prometheus"]["secrets"]
    assert composed["secrets"][secret] == {"environment": "SCRAPE_TOKEN"}
    assert root.listen.internal == f"{gateways[0]}:7468"
